"""What pages show in these tests: a folder of small simulated runs, one of them with hostile text wherever text can be, and a sweep."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.engines.sim.text import sim_answer
from pipeline.store.store import write_part
from tests.support.runs import solve
from tests.support.sweeps import sweep

HOSTILE = (
    "</script><script>window.hit = 1</script><img src=x onerror='window.hit = 2'>"
    "<a href='https://evil.example/'>bold</a><!-- {{ 7 * 7 }} \x1b[2J\u202egnp.exe &lt;b&gt;"
)
"""What a page must show as it is."""
SHOWN = HOSTILE.replace("\x1b", "\\u001b").replace("\u202e", "\\u202e")
"""`HOSTILE` as a reader sees it."""
TEXTS = "chain_id problem_id problem answer answer_text reference_answer error_message step_text candidate_texts stage".split()
"""Columns of text that others wrote."""


def shown_run(folder: Path, rows: list[dict[str, Any]], graph: str = "speccot", name: str = "run", **options: Any) -> Path:
    """A run of these problems on simulated engines."""
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return solve(folder, name, graph, input=folder / "problems.jsonl", **options).folder


def hostile_run(ran: Path, folder: Path) -> None:
    """A copy of a run in `folder` that says `HOSTILE` wherever it can."""
    shutil.copytree(ran, folder)
    card = json.loads((folder / "run.json").read_text())
    source = card["source"].replace("params:", f"params:\n  more: {json.dumps(HOSTILE)}", 1)
    card |= {"options": card["options"] | {"graph": HOSTILE}, "command": [HOSTILE], "source": source}
    (folder / "run.json").write_text(json.dumps(card))
    for path in folder.rglob("*.parquet"):
        table = pq.read_table(path)
        texts = {
            name: pa.array(map(spoilt, table[name].to_pylist()), table.schema.field(name).type) for name in {*TEXTS} & {*table.column_names}
        }
        write_part(path, pa.table({name: texts.get(name, table[name]) for name in table.column_names}, table.schema))


def spoilt(value: Any) -> Any:
    """`HOSTILE` behind a text, or behind each of a list."""
    return [spoilt(each) for each in value] if isinstance(value, list) else value and value + HOSTILE


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By SpecCoT, by the target alone, over problems of which simulated models know nothing, of hostile text, and two that are damaged.

    Of the twenty problems half have the answers of simulated models; one more row holds no problem, so that its chain fails.
    """
    folder = tmp_path_factory.mktemp("view") / "runs"
    (folder / "real").mkdir(parents=True)
    asked = [f"What is {i} + 1?" for i in range(20)]
    rows: list[dict[str, Any]] = [
        {"problem": text, "answer": sim_answer(text) if i % 2 else str(i + 1), "problem_id": f"p{i}"} for i, text in enumerate(asked)
    ]
    rows.append({"problem": 5, "answer": "6", "problem_id": "bad"})
    ran = shown_run(folder, rows, name="speccot", batch_size=8)
    shown_run(folder, rows, "target", "alone")
    hostile_run(ran, folder / "sweep" / "<b>run")
    shown_run(
        folder / "real", [{"problem": f"Who was number {i}?", "answer": f"x^{i}", "problem_id": f"q{i}"} for i in range(5)], name="made up"
    )
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
    """SpecCoT with 1 and 5 candidates and the target alone at two batch sizes."""
    return sweep(tmp_path_factory.mktemp("page"), vary={"candidates": (1, 5)}).folder
