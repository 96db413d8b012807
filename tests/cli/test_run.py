"""`pipeline run` and `resume`: what is printed where, what is kept, and in which folder."""

import json
import re
import shutil
from contextlib import chdir
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.cli.main import run_command
from pipeline.cli.solve import solved
from pipeline.errors import Interrupted
from pipeline.graph.plan import Plan
from pipeline.options import RunOptions
from pipeline.run.run import SessionResult, run
from pipeline.store.kept_problems import Problems
from pipeline.store.run_file import RunFile
from pipeline.study.systems import run_baseline
from tests.support.commands import pipeline, spawned
from tests.support.paths import ROOT, SIM, TEST_SET
from tests.support.runs import write_problems

SPECCOT = "graphs/speccot.yaml"
NOBODY = "{backend: openai, base_url: 'http://127.0.0.1:1/v1', model: none, tokenizer: 'bundled:tiny-target', reconnect_s: 0.1}"
"""An engine that cannot be opened: that would be another sentence and another exit code."""
SMALL = ("--model", "target=bundled:tiny-target", "--model", "draft=bundled:tiny-draft")


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "problems.csv"
    path.write_text("question,id\nWhat is 1 + 1?,a\nWhat is 2 + 2?,b\n")
    return path


def test_a_run_prints_its_summary_and_where_the_answers_are(tmp_path: Path, problems: Path) -> None:
    columns = ("--column", "problem=question", "--column", "problem_id=id")
    done = pipeline("run", SPECCOT, problems, "--engines", SIM, *columns, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "2 of 2 solved in " in done.stdout
    assert " of simulated time" in done.stdout
    assert f"pipeline export {tmp_path}/out -o answers.csv" in done.stdout
    assert sorted(pq.read_table(tmp_path / "out/chains")["problem_id"].to_pylist()) == ["a", "b"]


@pytest.mark.slow
def test_a_baseline_is_solved_after_the_run_and_compared(tmp_path: Path) -> None:
    run = ("run", SPECCOT, "--engines", SIM, "--input", TEST_SET, "--limit", "20", "--output", tmp_path / "out")
    done = pipeline(*run, "--baseline")
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stderr.splitlines() if " 20 problems, " in line] == ["speccot", "target"]
    told = done.stdout
    assert re.search(r"baseline +[0-9.]+x +the target alone: ", told)
    assert "both are simulated" in told
    assert pipeline("resume", tmp_path / "out").stdout == told, "both are finished"
    shutil.rmtree(tmp_path / "out-target")
    assert pipeline("resume", tmp_path / "out").stdout == told, "it is solved again"
    assert pipeline(*run[:-1], tmp_path / "plain").stdout.count("baseline     not run   to compare with the target alone:") == 1


def test_what_is_solved_is_kept_where_its_baseline_is_interrupted(tmp_path: Path) -> None:
    options = RunOptions(graph=Path(SPECCOT), engines=SIM, input=(str(TEST_SET),), limit=2, output=tmp_path / "out", baseline=True)

    def solve(given: RunOptions, plan: Plan | None = None, problems: Problems | None = None) -> SessionResult:
        if given.output != options.output:
            raise Interrupted
        return run(given, problems=problems)

    results, code = solved(solve, options, run_baseline(options))
    assert ([each.done for each in results], code) == ([2], 130)


@pytest.mark.slow
def test_json_goes_to_stdout_alone(tmp_path: Path, problems: Path) -> None:
    done = spawned("run", SPECCOT, "--engines", SIM, problems, "--column", "problem=question", "--json", "--output", tmp_path / "out")
    summary = json.loads(done.stdout)
    assert (summary["done"], summary["graded"], summary["accuracy"]) == (2, 0, None)


@pytest.mark.slow
def test_resume_changes_what_its_options_name(tmp_path: Path) -> None:
    run = tmp_path / "runs/mine"
    started = pipeline("run", "speccot", "--engines", SIM, "-i", write_problems(tmp_path, 4), "-n", "2", "-o", run)
    assert started.returncode == 0, started.stderr
    resumed = pipeline("resume", "mine", "-n", "3", "--batch-size", "2", "--engines", "sim-1xh200", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    found = RunFile.read(run)
    assert (found.totals.chains_done, found.options.batch_size) == (3, 2)


@pytest.mark.parametrize(("name", "place"), [("run", "/proc/x/deeper"), ("sweep", "file/deep/run")])
def test_a_folder_that_cannot_be_made_is_named_before_an_engine_starts(tmp_path: Path, name: str, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    folder, engines, problems = tmp_path / place, tmp_path / "engines.yaml", write_problems(tmp_path, 2)
    engines.write_text(f"draft: {NOBODY}\ntarget: {NOBODY}\n")
    before = sorted(tmp_path.rglob("*"))
    done = pipeline(name, ROOT / SPECCOT, "--batch-size", "4", "--input", problems, "--engines", engines, "--output", folder)
    why = "not a directory" if name == "sweep" else "no such file or directory"
    assert (done.returncode, done.stderr) == (2, f"error: {folder}: cannot be written: {why}\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_working_folder_that_is_gone_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gone").mkdir()
    problems = write_problems(tmp_path, 2)
    with chdir(tmp_path / "gone"):
        (tmp_path / "gone").rmdir()
        code = run_command(["run", str(ROOT / SPECCOT), "--engines", str(SIM), "--input", str(problems)])
    assert (code, capsys.readouterr().err) == (2, "error: the working folder: no such file or directory\n")


@pytest.mark.torch
@pytest.mark.usefixtures("torch_here")
def test_a_run_on_named_models_is_resumed_on_the_engines_that_were_chosen(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = pipeline("run", "speccot", *SMALL, "--input", TEST_SET, "--limit", "8", "--output", run)
    assert done.returncode == 0, done.stderr
    assert "engines: target bundled:tiny-target (torch, " in done.stderr
    assert pipeline("resume", run, "--limit", "12").returncode == 0
    found = RunFile.read(run)
    assert (found.totals.chains_done, found.engines["target"]["model"]) == (12, "bundled:tiny-target")
