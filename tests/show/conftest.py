"""What pages show in these tests: a folder of small simulated runs, and a sweep."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.shown_runs import hostile_run, shown_run
from tests.support.sweeps import sweep


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By SpecCoT, by the target alone, over problems of which simulated models know nothing, of hostile text, and two that are damaged."""
    folder = tmp_path_factory.mktemp("view") / "runs"
    folder.mkdir()
    ran = shown_run(folder, name="speccot", batch_size=8)
    shown_run(folder, "target", "alone")
    hostile_run(ran, folder / "sweep" / "<b>run")
    (folder / "real").mkdir()
    problems = "".join(f'{{"problem": "Who was number {i}?", "answer": "x^{i}", "problem_id": "q{i}"}}\n' for i in range(5))
    (folder / "real" / "problems.jsonl").write_text(problems)
    shown_run(folder / "real", name="made up", limit=5)
    part = next((shutil.copytree(ran, folder / "damaged") / "chains").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-40] + bytes(40))
    (folder / "unreadable").mkdir()
    (folder / "unreadable" / "run.json").write_text("{")
    return folder


@pytest.fixture(scope="session")
def ran(runs: Path) -> Path:
    """Twenty chains of SpecCoT on simulated engines, and one that failed."""
    return runs / "speccot"


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SpecCoT with 1 and 5 candidates and the target alone at two batch sizes, run in a thread: a browser keeps a loop running here."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(sweep, tmp_path_factory.mktemp("page"), vary={"candidates": (1, 5)}).result().folder
