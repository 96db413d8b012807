"""A folder of small runs: by SpecCoT, by the target alone, over problems of which simulated models know nothing, of hostile text, and one
that is damaged."""

import shutil
from pathlib import Path

import pytest

from tests.support.shown_runs import hostile_run, shown_run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view") / "runs"
    folder.mkdir()
    ran = shown_run(folder, name="speccot", batch_size=8)
    shown_run(folder, "target", "alone")
    hostile_run(ran, folder / "sweep" / "<b>run")
    (folder / "real").mkdir()
    problems = "".join(f'{{"problem": "Who was number {i}?", "answer": "x^{i}", "problem_id": "q{i}"}}\n' for i in range(5))
    (folder / "real" / "problems.jsonl").write_text(problems)
    shown_run(folder / "real", name="made up", limit=5)
    damaged = shutil.copytree(ran, folder / "damaged")
    part = next((damaged / "chains").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-40] + bytes(40))
    (folder / "unreadable").mkdir()
    (folder / "unreadable" / "run.json").write_text("{")
    return folder
