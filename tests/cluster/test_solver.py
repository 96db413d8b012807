"""`pipeline.ray.Solver`, each time in a process of its own, as in a worker of Ray."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.session.options import RunOptions
from pipeline.session.run import run
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S
from tests.support.ray_cluster import ENGINE
from tests.support.runs import chains_of, write_problems

pytestmark = pytest.mark.slow
HEAD = """
import asyncio, json, os, sys, warnings
import pyarrow as pa
from pipeline.errors import PipelineError
from pipeline.ray import Solver

async def rows(solver, batch):
    return [row async for table in solver(batch) for row in table.to_pylist()]

def say(value):
    print("said", json.dumps(value), flush=True)
"""


def said(folder: Path, program: str) -> tuple[int, Any, str]:
    """Exit code of a program, the value that it said, and its stderr."""
    process = subprocess.run(
        [sys.executable, "-c", HEAD + program], cwd=folder, text=True, capture_output=True, timeout=HANGS_S, check=False, env=environment()
    )
    values = [json.loads(line[5:]) for line in process.stdout.splitlines() if line.startswith("said ")]
    return process.returncode, values[0] if values else None, process.stderr


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {"PYTHONPATH": str(ROOT)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "engines.yaml").write_text(f"draft: {ENGINE}\ntarget: {ENGINE}\n")
    return tmp_path


def test_a_row_that_holds_no_text_or_has_no_id_spoils_no_other(folder: Path) -> None:
    code, found, error = said(
        folder,
        """
import numpy as np, pandas as pd
solver = Solver("speccot", engines="engines.yaml", columns={"problem_id": "id", "problem": "text"}, batch_size=4)
columns = {"text": ["half \\ud800", "Two?", "Three?"], "id": ["a", None, "c"], "odd": [1, "x", None]}
columns["answer"] = np.array([0.3, 0.3, 2], np.float32)
async def main():
    frame = pd.DataFrame({name: pd.Series(values, dtype=getattr(values, "dtype", object)) for name, values in columns.items()})
    say([await rows(solver, columns), await rows(solver, frame)])
asyncio.run(main())
""",
    )
    assert code == 0, error
    for rows in found:
        half, nameless, named = (next(row for row in rows if row["text"].startswith(start)) for start in ("half", "Two", "Three"))
        assert (half["status"], half["error"]) == ("failed", "contains a lone surrogate, which is not a character")
        assert (nameless["status"], nameless["reference_answer"], named["problem_id"], named["reference_answer"]) == (
            "done",
            "0.3",
            "c",
            "2",
        )
    assert len({row["problem_id"] for rows in found for row in rows if row["text"] == "Two?"}) == 1, "its name is that of its text"


def test_rows_come_back_with_their_columns_as_they_finish(folder: Path) -> None:
    code, found, error = said(
        folder,
        """
solver = Solver("speccot", engines="engines.yaml", columns={"problem": "question"}, batch_size=4)
batch = {"question": ["One?", "", "Two?", "One?"], "answer": ["1", "2", "3", "1"], "level": [1, 2, 3, 4]}
async def main():
    first, second = await asyncio.gather(rows(solver, batch), rows(solver, pa.table({"question": ["Two?"], "level": [5]})))
    say([first, second])
asyncio.run(main())
""",
    )
    assert code == 0, error
    rows, others = found
    by_level = {row["level"]: row for row in rows}
    assert sorted(by_level) == [1, 2, 3, 4]
    assert list(rows[0])[:3] == ["question", "input_answer", "level"]
    assert by_level[2]["status"] == "failed"
    assert by_level[2]["error"] == "`question` is empty"
    assert [by_level[level]["status"] for level in (1, 3, 4)] == ["done"] * 3
    assert by_level[1]["answer"] == by_level[4]["answer"], "the same problem is the same chain, and is solved once"
    assert by_level[1]["problem_id"] == by_level[4]["problem_id"]
    assert others[0]["answer"] == by_level[3]["answer"], "seeds come from the text, whatever batch it is in"
    assert others[0]["correct"] is None
    assert by_level[3]["correct"] is False


def test_a_problem_is_answered_as_in_a_run(folder: Path) -> None:
    instant = ROOT / "graphs/engines/sim-instant.yaml"
    run(RunOptions(graph=Path("speccot"), engines=instant, input=write_problems(folder, 6), output=folder / "run"))
    expected = {row["problem_id"]: row["answer_text"] for row in chains_of(folder / "run")}
    code, found, error = said(
        folder,
        f"""
solver = Solver("speccot", engines={str(instant)!r})
batch = [json.loads(line) for line in open("problems.jsonl")]
async def main():
    say(await rows(solver, {{name: [row[name] for row in batch] for name in batch[0]}}))
asyncio.run(main())
""",
    )
    assert code == 0, error
    assert {row["problem_id"]: row["answer_text"] for row in found} == expected


DYING = ENGINE.replace("backend: sim,", "backend: sim, max_restarts: 0, faults: {dies_after_calls: 9},")


def test_engines_that_die_for_good_end_the_process(folder: Path) -> None:
    (folder / "engines.yaml").write_text(f"draft: {DYING}\ntarget: {ENGINE}\n")
    batch = "{'problem': [f'Number {i}?' for i in range(20)]}"
    code, found, error = said(
        folder, f"solver = Solver('speccot', engines='engines.yaml')\nasyncio.run(rows(solver, {batch}))\nsay('alive')"
    )
    assert (code, found) == (1, None)
    assert error.startswith("pipeline: engine 'draft' died")
    code, found, error = said(
        folder,
        f"""
solver = Solver("speccot", engines="engines.yaml", exits=False)
async def main():
    failures = []
    for _ in range(2):
        try:
            await rows(solver, {batch})
        except PipelineError as error:
            failures.append(str(error))
    say(failures)
asyncio.run(main())
""",
    )
    assert code == 0, error
    assert len(set(found)) == 1, "whoever comes later hears the same"
    assert found[0].startswith("engine 'draft' died")


def test_what_is_wrong_is_said_before_the_first_batch(folder: Path) -> None:
    (folder / "missing.yaml").write_text("draft: {backend: torch, model: /nowhere}\ntarget: {backend: torch, model: /nowhere}\n")
    code, found, error = said(
        folder,
        """
found = []
for options in ({"engines": "missing.yaml"}, {"engines": "engines.yaml", "columns": {"question": "problem"}}):
    try:
        Solver("speccot", **options)
    except PipelineError as error:
        found.append([type(error).__name__, str(error)])
say(found)
""",
    )
    assert code == 0, error
    assert [name for name, _ in found] == ["UsageError", "InputError"]
    assert "/nowhere" in found[0][1]
    assert "did you mean --column problem='question'?" in found[1][1]


def test_in_a_pipeline_of_ray_data(folder: Path) -> None:
    code, found, error = said(
        folder,
        """
import ray
warnings.simplefilter("ignore")
ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="critical")
context = ray.data.DataContext.get_current()
context.enable_progress_bars = False
problems = [{"problem": f"Number {i}?", "level": i} for i in range(24)]
data = ray.data.from_items(problems).filter(lambda row: row["level"] >= 4)
options = {"graph": "speccot", "engines": os.path.abspath("engines.yaml"), "batch_size": 4}
data = data.map_batches(Solver, fn_constructor_kwargs=options, batch_size=5, concurrency=(1, 2), num_cpus=1)
data.write_parquet("answers")
say(sorted([row["level"], row["status"], row["error"]] for row in ray.data.read_parquet("answers").take_all()))
ray.shutdown()
""",
    )
    assert code == 0, error
    assert found == [[level, "done", None] for level in range(4, 24)]
