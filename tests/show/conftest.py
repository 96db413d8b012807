"""What pages show in these tests: a folder of small simulated runs, one of them with hostile text wherever text can be, and a sweep."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.engines.sim.text import sim_answer
from pipeline.options import RunOptions
from pipeline.run.run import run
from pipeline.store.store import write_part
from tests.support.paths import ROOT
from tests.support.sweeps import sweep

HOSTILE = (
    "</script><script>window.hit = 1</script><img src=x onerror='window.hit = 2'>"
    "<a href='https://evil.example/'>bold</a><!-- {{ 7 * 7 }} \x1b[2J\u202egnp.exe &lt;b&gt;"
)
"""What a page must show as it is."""
SHOWN = HOSTILE.replace("\x1b", "\\u001b").replace("\u202e", "\\u202e")
"""`HOSTILE` as a reader sees it."""


def shown_run(folder: Path, graph: str = "speccot", name: str = "run", **options: Any) -> Path:
    """Twenty problems solved on simulated engines, for which half of the answers are those of simulated models; one more row holds no
    problem, so that its chain fails. Where `folder` has a `problems.jsonl`, its problems are solved."""
    problems = folder / "problems.jsonl"
    if not problems.exists():
        asked = [f"What is {i} + 1?" for i in range(20)]
        rows: list[dict[str, Any]] = [
            {"problem": text, "answer": sim_answer(text) if i % 2 else str(i + 1), "problem_id": f"p{i}"} for i, text in enumerate(asked)
        ]
        rows.append({"problem": 5, "answer": "6", "problem_id": "bad"})
        problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    engines, out = ROOT / "graphs/engines/sim-2xh100.yaml", folder / name
    chosen = RunOptions(graph=ROOT / f"graphs/{graph}.yaml", engines=engines, input=(str(problems),), output=out, **options)
    with ThreadPoolExecutor(1) as pool:  # an open browser keeps an event loop running in this thread
        assert pool.submit(run, chosen).result().exit_code == (0 if "limit" in options else 3)
    return out


def hostile_run(ran: Path, folder: Path) -> Path:
    """A copy of a run in `folder` that says `HOSTILE` wherever it can."""
    shutil.copytree(ran, folder)
    card = json.loads((folder / "run.json").read_text())
    source = card["source"].replace("params:", f"params:\n  more: {json.dumps(HOSTILE)}", 1)
    card |= {"options": card["options"] | {"graph": HOSTILE}, "command": [HOSTILE], "source": source}
    (folder / "run.json").write_text(json.dumps(card))
    for table, columns in {
        "chains": ("chain_id", "problem_id", "answer", "answer_text", "reference_answer", "error_message"),
        "steps": ("chain_id", "problem_id", "step_text", "candidate_texts", "stage"),
        "calls": ("chain_id", "problem_id", "stage"),
        "problems": ("problem", "problem_id"),
    }.items():
        rewrite(folder / table, columns)
    return folder


def rewrite(folder: Path, columns: tuple[str, ...]) -> None:
    """Put `HOSTILE` behind every text of `columns`."""
    for path in folder.glob("*.parquet"):
        table = pq.read_table(path)
        for name in columns:
            place, field = table.schema.get_field_index(name), table.schema.field(name)
            table = table.set_column(place, field, pa.array([spoilt(value) for value in table[name].to_pylist()], field.type))
        write_part(path, table)


def spoilt(value: Any) -> Any:
    if isinstance(value, list):
        return [spoilt(each) for each in value]
    return None if value is None else value + HOSTILE


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
