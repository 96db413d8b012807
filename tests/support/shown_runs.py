"""Runs to show: a small simulated one, and the same with hostile text wherever text can be."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.engines.sim.text import sim_answer
from pipeline.options import RunOptions
from pipeline.run.run import run
from pipeline.store.store import write_part
from tests.support.paths import ROOT

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
    assert exit_code(chosen) == (0 if "limit" in options else 3)
    return out


def exit_code(options: RunOptions) -> int:
    """That of a run in a thread: an open browser keeps an event loop running in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run, options).result().exit_code


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
