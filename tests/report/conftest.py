"""A small simulated run, and the same with hostile text wherever text can be."""

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.report.report import report
from pipeline.report.run_sections import ReportOptions
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from pipeline.store.parts import write_part
from tests.support.replicas import replica_run

ROOT = Path(__file__).parent.parent.parent
HOSTILE = (
    "</script><script>window.hit = 1</script><img src=x onerror='window.hit = 2'>"
    "<a href='https://evil.example/'>bold</a><!-- {{ 7 * 7 }} \x1b[2J\u202egnp.exe &lt;b&gt;"
)


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty chains of SpecCoT on simulated engines; one more row holds no problem, so that its chain failed."""
    folder = tmp_path_factory.mktemp("report")
    rows: list[dict[str, Any]] = [{"problem": f"What is {i} + 1?", "answer": str(i + 1), "problem_id": f"p{i}"} for i in range(20)]
    rows.append({"problem": 5, "answer": "6", "problem_id": "bad"})
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = RunOptions(
        graph=ROOT / "graphs/speccot.yaml",
        engines=ROOT / "graphs/engines/sim-2xh100.yaml",
        input=folder / "problems.jsonl",
        output=folder / "run",
        batch_size=8,
    )
    assert exit_code(options) == 3
    return folder / "run"


@pytest.fixture(scope="session")
def alone(ran: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same problems solved by the target alone."""
    folder = tmp_path_factory.mktemp("alone") / "alone"
    engines, problems = ROOT / "graphs/engines/sim-2xh100.yaml", ran.parent / "problems.jsonl"
    assert exit_code(RunOptions(graph=ROOT / "graphs/target.yaml", engines=engines, input=problems, output=folder)) == 3
    return folder


@pytest.fixture(scope="session")
def routed(ran: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first two problems where a gate decides which model writes a step."""
    folder = tmp_path_factory.mktemp("routed") / "routed"
    engines, problems = ROOT / "graphs/engines/sim-2xh100.yaml", ran.parent / "problems.jsonl"
    assert exit_code(RunOptions(graph=ROOT / "graphs/routed.yaml", engines=engines, input=problems, limit=2, output=folder)) == 0
    return folder


@pytest.fixture(scope="session")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four replicas, of which the last one is slow and was lost once."""
    folder = tmp_path_factory.mktemp("replicas")
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: replica_run(folder, 4, slow=3)).result()


def exit_code(options: RunOptions) -> int:
    """That of a run in a thread: an open browser keeps an event loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run, options).result().exit_code


@pytest.fixture(scope="session")
def hostile(ran: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "<b>run"
    shutil.copytree(ran, folder)
    card = json.loads((folder / "run.json").read_text())
    card |= {"graph_file": HOSTILE, "command": [HOSTILE], "params": card["params"] | {"more": HOSTILE}}
    (folder / "run.json").write_text(json.dumps(card))
    for table, columns in {
        "chains": ("chain_id", "problem_id", "answer", "answer_text", "reference_answer", "error_message"),
        "steps": ("chain_id", "problem_id", "step_text", "candidate_texts", "stage"),
        "calls": ("chain_id", "problem_id", "stage"),
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
def page_of() -> Callable[..., str]:
    """The page of run folders, as the command makes it."""
    return lambda *runs, chains=6, bins=40: report(runs, ReportOptions(chains=chains, bins=bins))


@pytest.fixture
def shown() -> str:
    """`HOSTILE` as a reader sees it."""
    return HOSTILE.replace("\x1b", "\\u001b").replace("\u202e", "\\u202e")
