"""`pipeline.ray.Solver` in processes of its own, as in a worker of Ray: one for all batches, one that ends, one with Ray Data."""

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
from tests.support.runs import chains_of, write_problems
from tests.support.waiting_engines import ENGINE

pytestmark = pytest.mark.slow
INSTANT = ROOT / "graphs/engines/sim-instant.yaml"
DYING = ENGINE.replace("backend: sim,", "backend: sim, max_restarts: 0, faults: {dies_after_calls: 9},")
MISSING = "{backend: torch, model: /nowhere}"
HEAD = """
import asyncio, json, os, sys, warnings
import numpy as np, pandas as pd, pyarrow as pa
from pipeline.errors import PipelineError
from pipeline.ray import Solver

async def rows(solver, batch):
    return [row async for table in solver(batch) for row in table.to_pylist()]

def say(**values):
    print("said", json.dumps(values), flush=True)

many = {"problem": [f"Number {i}?" for i in range(20)]}
"""
BATCHES = f"""
solver = Solver("speccot", engines="engines.yaml", columns={{"problem_id": "id", "problem": "text"}}, batch_size=4)
columns = {{"text": ["half \\ud800", "Two?", "Three?"], "id": ["a", None, "c"], "odd": [1, "x", None]}}
columns["answer"] = np.array([0.3, 0.3, 2], np.float32)
async def odd():
    frame = pd.DataFrame({{name: pd.Series(values, dtype=getattr(values, "dtype", object)) for name, values in columns.items()}})
    return [await rows(solver, columns), await rows(solver, frame)]
say(odd=asyncio.run(odd()))

solver = Solver("speccot", engines="engines.yaml", columns={{"problem": "question"}}, batch_size=4)
batch = {{"question": ["One?", "", "Two?", "One?"], "answer": ["1", "2", "3", "1"], "level": [1, 2, 3, 4]}}
async def twice():
    return await asyncio.gather(rows(solver, batch), rows(solver, pa.table({{"question": ["Two?"], "level": [5]}})))
say(twice=asyncio.run(twice()))

solver = Solver("speccot", engines={str(INSTANT)!r})
batch = [json.loads(line) for line in open("problems.jsonl")]
say(run=asyncio.run(rows(solver, {{name: [row[name] for row in batch] for name in batch[0]}})))

async def failures():
    solver = Solver("speccot", engines="dying.yaml", exits=False)
    for _ in range(2):
        try:
            await rows(solver, many)
        except PipelineError as error:
            yield str(error)
async def listed():
    return [each async for each in failures()]
say(failures=asyncio.run(listed()))

refused = []
for options in ({{"engines": "missing.yaml"}}, {{"engines": "engines.yaml", "columns": {{"question": "problem"}}}}):
    try:
        Solver("speccot", **options)
    except PipelineError as error:
        refused.append([type(error).__name__, str(error)])
say(refused=refused)
"""
RAY_DATA = """
import ray
warnings.simplefilter("ignore")
ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level="critical")
ray.data.DataContext.get_current().enable_progress_bars = False
problems = [{"problem": f"Number {i}?", "level": i} for i in range(24)]
data = ray.data.from_items(problems).filter(lambda row: row["level"] >= 4)
options = {"graph": "speccot", "engines": os.path.abspath("engines.yaml"), "batch_size": 4}
data = data.map_batches(Solver, fn_constructor_kwargs=options, batch_size=5, concurrency=(1, 2), num_cpus=1)
data.write_parquet("answers")
say(rows=sorted([row["level"], row["status"], row["error"]] for row in ray.data.read_parquet("answers").take_all()))
ray.shutdown()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("solver")
    write_problems(folder, 6)
    for name, draft in {"engines": ENGINE, "dying": DYING, "missing": MISSING}.items():
        (folder / f"{name}.yaml").write_text(f"draft: {draft}\ntarget: {MISSING if name == 'missing' else ENGINE}\n")
    return folder


def said(folder: Path, program: str) -> tuple[int, dict[str, Any], str]:
    """Exit code of a program, the values that it said, and its stderr."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {"PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", HEAD + program], cwd=folder, text=True, capture_output=True, timeout=HANGS_S, check=False, env=environment
    )
    values: dict[str, Any] = {}
    for line in process.stdout.splitlines():
        if line.startswith("said "):
            values |= json.loads(line[5:])
    return process.returncode, values, process.stderr


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    code, values, error = said(folder, BATCHES)
    assert code == 0, error
    return values


def test_a_row_that_holds_no_text_or_has_no_id_spoils_no_other(found: dict[str, Any]) -> None:
    for rows in found["odd"]:
        half, nameless, named = (next(row for row in rows if row["text"].startswith(start)) for start in ("half", "Two", "Three"))
        assert (half["status"], half["error"]) == ("failed", "contains a lone surrogate, which is not a character")
        assert (nameless["status"], nameless["reference_answer"]) == ("done", "0.3")
        assert (named["problem_id"], named["reference_answer"]) == ("c", "2")
    names = {row["problem_id"] for rows in found["odd"] for row in rows if row["text"] == "Two?"}
    assert len(names) == 1, "its name is that of its text"


def test_rows_come_back_with_their_columns_as_they_finish(found: dict[str, Any]) -> None:
    rows, others = found["twice"]
    by_level = {row["level"]: row for row in rows}
    assert sorted(by_level) == [1, 2, 3, 4]
    assert list(rows[0])[:3] == ["question", "input_answer", "level"]
    assert (by_level[2]["status"], by_level[2]["error"]) == ("failed", "`question` is empty")
    assert [by_level[level]["status"] for level in (1, 3, 4)] == ["done"] * 3
    assert by_level[1]["answer"] == by_level[4]["answer"], "the same problem is the same chain, and is solved once"
    assert by_level[1]["problem_id"] == by_level[4]["problem_id"]
    assert others[0]["answer"] == by_level[3]["answer"], "seeds come from the text, whatever batch it is in"
    assert (others[0]["correct"], by_level[3]["correct"]) == (None, False)


def test_a_problem_is_answered_as_in_a_run(folder: Path, found: dict[str, Any]) -> None:
    run(RunOptions(graph=Path("speccot"), engines=INSTANT, input=folder / "problems.jsonl", output=folder / "run"))
    expected = {row["problem_id"]: row["answer_text"] for row in chains_of(folder / "run")}
    assert {row["problem_id"]: row["answer_text"] for row in found["run"]} == expected


def test_engines_that_die_for_good_end_the_process(folder: Path, found: dict[str, Any]) -> None:
    code, values, error = said(folder, "solver = Solver('speccot', engines='dying.yaml')\nasyncio.run(rows(solver, many))\nsay(alive=1)")
    assert (code, values) == (1, {})
    assert error.startswith("pipeline: engine 'draft' died")
    assert len(set(found["failures"])) == 1, "whoever comes later hears the same"
    assert found["failures"][0].startswith("engine 'draft' died")


def test_what_is_wrong_is_said_before_the_first_batch(found: dict[str, Any]) -> None:
    (one, missing), (other, column) = found["refused"]
    assert (one, other) == ("UsageError", "InputError")
    assert "/nowhere" in missing
    assert "did you mean --column problem='question'?" in column


def test_in_a_pipeline_of_ray_data(folder: Path) -> None:
    code, values, error = said(folder, RAY_DATA)
    assert code == 0, error
    assert values["rows"] == [[level, "done", None] for level in range(4, 24)]
