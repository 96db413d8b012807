"""`pipeline show` and `view`: runs in a table, one run, one chain step by step; pages that are served or written."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.commands import COMMAND, pipeline
from tests.support.paths import ROOT
from tests.support.runs import solve_short, write_problems


def test_how_far_a_run_is_told_until_it_ends(tmp_path: Path) -> None:
    result = solve_short(tmp_path, input=write_problems(tmp_path, 12, (b'{"problem_id": "bad"}',)))
    done = pipeline("show", result.folder, "--follow")
    assert (done.returncode, done.stdout.startswith("run: finished, 13/13 chains · 1 failed · ")) == (0, True)
    found = json.loads(pipeline("show", result.folder, "--follow", "--json").stdout)
    assert (found["state"], found["chains"], found["of"], found["failed"]) == ("finished", 13, 13, 1)
    assert found["graded"] == result.run.totals.graded


@pytest.mark.slow
def test_one_chain_step_by_step_by_its_name_or_its_row(source: Path) -> None:
    done = pipeline("show", source / "one", "p3")
    chain = next(row for row in pq.read_table(source / "one/chains").to_pylist() if row["problem_id"] == "p3")
    steps = [row for row in pq.read_table(source / "one/steps").to_pylist() if row["chain_id"] == chain["chain_id"]]
    assert (done.returncode, done.stderr) == (0, "")
    assert "Problem number 3?" in done.stdout
    assert [f"[{row['step_index']}] {row['decision']}" in done.stdout for row in steps] == [True] * len(steps)
    assert f"answer: {chain['answer']}" in done.stdout
    assert pipeline("show", source / "one", str(chain["input_row"])).stdout == done.stdout
    assert len(pipeline("show", source / "one", "p3", "--candidates").stdout) > len(done.stdout)
    assert "Problem number 3?" in pipeline("show", source / "two", "p3", "--sample", "2").stdout


@pytest.mark.slow
def test_a_run_is_found_by_its_name_in_the_folder_of_runs(source: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(source)
    done = pipeline("show", "one", cwd=tmp_path)
    assert (done.returncode, "12 of 13 solved" in done.stdout) == (0, True)
    assert "1 x BadRow (while reading input): " in pipeline("show", "one", "--failed", cwd=tmp_path).stdout


@pytest.mark.slow
def test_a_table_of_runs(source: Path) -> None:
    done = pipeline("show", source)
    named = {"run", "graph", "state", "chains", "accuracy", "problems/s", "size", "models", "one", "two"}
    assert (done.returncode, named - set(done.stdout.split())) == (0, set())
    records = {row["folder"]: row for row in map(json.loads, pipeline("show", source, "--json").stdout.splitlines())}
    found = records["one"]
    assert [found[name] for name in ("graph", "state", "chains", "of")] == ["speccot", "finished", 13, 13]
    assert (records["two"]["chains"], records["two"]["of"]) == (39, 39)
    totals = json.loads((source / "one" / "run.json").read_text())["totals"]
    assert (found["answers"], found["accuracy"]) == ("simulated", totals["correct"] / totals["graded"])
    assert found["bytes"] == sum(path.stat().st_size for path in (source / "one").rglob("*") if path.is_file())


@pytest.mark.slow
def test_pages_are_served_until_an_interrupt(source: Path) -> None:
    words = [*COMMAND, "view", source, "--port", "0"]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split(" at ")[1].split()[0]
        with urllib.request.urlopen(url) as answer:
            assert "speccot" in answer.read().decode()
    finally:
        process.send_signal(2)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")


@pytest.mark.slow
def test_pages_are_written_to_a_file(source: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = pipeline("view", "one", "-o", page, cwd=source)
    assert (done.returncode, done.stderr, done.stdout.startswith(f"page: {page} (")) == (0, "", True)
    assert "<title>Run one</title>" in page.read_text()
    assert pipeline("view", source, "-o", page).returncode == 0
    assert "<h2>Comparison</h2>" in page.read_text(), "the runs in a folder"


@pytest.mark.slow
@pytest.mark.parametrize("package", ["latex2mathml", "uvicorn"])
def test_without_the_extra_it_says_how_to_get_it(tmp_path: Path, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; {COMMAND[-1]}"
    asked = [sys.executable, "-c", code, "view", str(tmp_path)]
    done = subprocess.run(asked, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120)
    remedy = 'pip install "speculative-pipeline[view]"'
    assert (done.returncode, done.stderr) == (2, f"error: view needs the package `{package}`, which is not installed: {remedy}\n")
