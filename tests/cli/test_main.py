"""The command line: what is printed where, and the exit codes."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.cli.solve import solved
from pipeline.errors import Interrupted
from pipeline.graph.plan import Plan
from pipeline.options import RunOptions
from pipeline.run.run import SessionResult, run
from pipeline.store.kept_problems import Problems
from pipeline.sweep.baseline import plan_baseline
from tests.support.commands import COMMAND, pipeline, spawned
from tests.support.paths import TEST_SET
from tests.support.patience import HANGS_S

ROOT = Path(__file__).parent.parent.parent
SPECCOT, SIM = "graphs/speccot.yaml", "graphs/engines/sim-2xh100.yaml"


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
    again = pipeline("run", "target", "--engines", SIM, "--input", TEST_SET, "--baseline")
    assert (again.returncode, again.stderr.startswith("error: --baseline: target is the target alone")) == (2, True)


def test_what_is_solved_is_kept_where_its_baseline_is_interrupted(tmp_path: Path) -> None:
    options = RunOptions(graph=Path(SPECCOT), engines=Path(SIM), input=(str(TEST_SET),), limit=2, output=tmp_path / "out", baseline=True)

    def solve(given: RunOptions, plan: Plan | None = None, problems: Problems | None = None) -> SessionResult:
        if given.output != options.output:
            raise Interrupted
        return run(given, problems=problems)

    results, code = solved(solve, options, plan_baseline(options))
    assert ([each.done for each in results], code) == ([2], 130)


@pytest.mark.slow
def test_json_goes_to_stdout_alone(tmp_path: Path, problems: Path) -> None:
    done = spawned(
        "run", SPECCOT, "--engines", SIM, "--input", problems, "--column", "problem=question", "--json", "--output", tmp_path / "out"
    )
    summary = json.loads(done.stdout)
    assert (summary["done"], summary["graded"], summary["accuracy"]) == (2, 0, None)


@pytest.mark.slow
@pytest.mark.parametrize(("room", "codes"), [("4096", (0, 1)), ("16", (3, 3))])
def test_a_summary_that_nobody_takes_changes_no_exit_code(tmp_path: Path, problems: Path, room: str, codes: tuple[int, int]) -> None:
    words = ["run", SPECCOT, "--engines", SIM, "--input", problems, "--column", "problem=question"]
    command = [*COMMAND, *map(str, words), "--set", f"engines.target.max_model_len={room}", "--output"]
    reading, writing = os.pipe()
    os.close(reading)
    closed = subprocess.run([*command, tmp_path / "closed"], cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, timeout=HANGS_S)
    os.close(writing)
    with open("/dev/full", "wb") as nowhere:
        full = subprocess.run([*command, tmp_path / "full"], cwd=ROOT, stdout=nowhere, stderr=subprocess.PIPE, timeout=HANGS_S)
    assert (closed.returncode, full.returncode) == codes
    assert b"the summary could not be printed: no space left on device" in full.stderr
    assert b"could not be printed" not in closed.stderr


def test_why_chains_failed_is_printed(tmp_path: Path, problems: Path) -> None:
    columns = ("--column", "problem=question", "--output", tmp_path / "[bold]")
    done = pipeline("run", SPECCOT, "--engines", SIM, "--input", problems, *columns, "--set", "engines.target.max_model_len=16")
    assert done.returncode == 3
    assert "2 of 2 chains: 2 " in done.stdout
    assert "; for example: a prompt of" in done.stdout
    assert "/[bold]\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", SPECCOT), "error: no problems to solve: name a file or a data set, such as arith; see pipeline run --help"),
        (("run", SPECCOT, "--input", "x", "--batch-size", "0"), "error: --batch-size: 0 is not between 1 and 1000000"),
        (("run", SPECCOT, "--input", "x", "--schedule", "pipeline"), "'pipeline' is not one of 'pipelined', 'lockstep', 'sequential'"),
        (("run", SPECCOT, "--input", "x", "--column", "problem"), "--column: expected FIELD=COLUMN"),
        (("run", SPECCOT, "--input", "x", "--column", "problem=a", "--column", "problem=b"), "error: --column problem is given twice; see"),
        (("run", SPECCOT, "--input", "x", "--limit", "1", "-n", "2"), "error: --limit is given twice; see pipeline run --help"),
        (("run", SPECCOT, "--input", "x", "--set", "candidates=3", "-s", "candidates=2"), "error: --set candidates is given twice; see"),
        (("run", SPECCOT, "--input", "x", "--model", "draft=a", "--model", "draft=b"), "error: --model draft is given twice; see"),
        (("run", SPECCOT, "--data", "x"), "error: no option `--data`; use --input FILE\n"),
        (("run", SPECCOT, "--max_tokens=100"), "error: no option `--max_tokens`; use --set token_budget=N\n"),
        (("sweep", SPECCOT, "--draft-model", "x"), "error: no option `--draft-model`; use --model draft=NAME\n"),
        (("run", SPECCOT, "--stop", "x"), "error: no option `--stop`; see pipeline run --help\n"),
        (("show", "--data", "x"), "error: no option `--data`; see pipeline show --help\n"),
        (("run", SPECCOT, "--input", TEST_SET, "--column", "question=problem"), "a problem has no field `question`"),
        (("run", "graphs/none.yaml", "--input", "x"), "graphs/none.yaml: cannot be read: no such file"),
        (("run", SPECCOT, "--input", "none.csv"), "none.csv: no such file"),
        (("run", SPECCOT, "--input", "README.md"), "error: README.md: unknown file type `.md`"),
        (("run", SPECCOT, "--input", "README.md", "--set", "candidate=3"), "did you mean `candidates`?"),
        (("graph", "check", "tests/graphs/cycle.yaml"), "draft -> fallback -> verify -> draft"),
        (("answer",), "error: pipeline: no command `answer`; see pipeline --help\n"),
        (("graph", "chek"), "error: pipeline graph: no command `chek`; did you mean `check`?"),
        (("run", SPECCOT, "--bacth-size", "3"), "error: no option `--bacth-size`; did you mean `--batch-size`?"),
        (("list", "graph"), "error: KIND: 'graph' is not one of 'graphs', "),
    ],
)
def test_wrong_options_are_exit_code_2(arguments: tuple[str, ...], expected: str) -> None:
    done = pipeline(*arguments)
    assert done.returncode == 2
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_process_ends_with_the_exit_code_of_its_command() -> None:
    done = spawned("graph", "check", "tests/graphs/cycle.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_check_prints_the_plan_as_text_and_as_json() -> None:
    done = pipeline("graph", "check", SPECCOT)
    assert done.returncode == 0
    assert done.stdout.startswith(f"{SPECCOT}: OK\nspeccot, digest ")
    assert "↻ reason: repeat" in done.stdout
    assert json.loads(pipeline("graph", "check", SPECCOT, "--json").stdout)["graph"]["name"] == "speccot"


@pytest.mark.torch
def test_an_engine_that_cannot_start_is_named_and_nothing_is_left(tmp_path: Path, problems: Path) -> None:
    columns = ("--column", "problem=question")
    for setting, expected in (("model=/nowhere", "engine 'target'"), ("model=bundled:tiny-targt", "did you mean `tiny-target`?")):
        out = tmp_path / "out"
        words = ("--engines", "tiny", "--set", f"engines.target.{setting}", "--output", out)
        done = pipeline("run", SPECCOT, "--input", problems, *columns, *words)
        assert done.returncode == 2, done.stderr
        assert expected in done.stderr
        assert "Traceback" not in done.stderr
        assert not out.exists()
