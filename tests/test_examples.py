"""The scripts in examples/ run, and their answers are right."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.options import RunOptions
from pipeline.run.run import run
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S
from tests.support.runs import rows, write_problems

RAY_DATA = ROOT / "examples/ray_data.py"
SCRIPTS = sorted({*(ROOT / "examples").glob("own_*.py")})
BATCHES = f"""
import json, runpy
Solver = runpy.run_path({str(RAY_DATA)!r}, run_name="__main__")["Solver"]
import ray
problems = [json.loads(line) for line in open("problems.jsonl")]
problems.append({{**problems[0], "problem_id": "empty", "problem": ""}})
actors = ray.data.ActorPoolStrategy(min_size=1, max_size=2)
options = {{"graph": "speccot", "engines": "sim-instant"}}
solved = ray.data.from_items(problems).map_batches(
    Solver, fn_constructor_kwargs=options, batch_size=3, batch_format="pyarrow", compute=actors
)
print(json.dumps(solved.take_all()))
"""


@pytest.mark.torch
@pytest.mark.usefixtures("torch_here")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_solves_what_it_shows(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.endswith("100% right\n")


@pytest.mark.long
def test_batches_of_ray_data_are_answered_as_in_a_run(tmp_path: Path) -> None:
    problems = write_problems(tmp_path, 8)
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", BATCHES], cwd=tmp_path, env=environment, text=True, capture_output=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    *script, said = done.stdout.splitlines()
    assert script[-1] == "100% right"
    found = {row["problem_id"]: row for row in json.loads(said)}
    assert found.pop("empty")["error"].endswith("has no `problem`")
    run(RunOptions(graph=Path("speccot"), engines=Path("sim-instant"), input=(str(problems),), output=tmp_path / "run"))
    expected = {row["problem_id"]: (row["answer"], row["correct"], None) for row in rows(tmp_path / "run", "chains")}
    assert {name: (row["solution"], row["correct"], row["error"]) for name, row in found.items()} == expected
