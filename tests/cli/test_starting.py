"""What is displayed while engines start, and that lines for a person go where the options say."""

import re
from pathlib import Path

import pytest

from pipeline.cli.live import Starts
from pipeline.cli.terminal import NoticeOptions, notices_as
from pipeline.engines.startup import READY, Listener, current_listener, listening
from pipeline.run.prepare import load_plan
from tests.support.commands import pipeline
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems

pytestmark = pytest.mark.slow  # whole runs


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_every_engine_says_what_it_does_and_for_how_long() -> None:
    clock = Clock()
    starts = Starts(load_plan(ROOT / "graphs/speccot.yaml", SIM, ()).engines, clock)
    assert starts.line("target") == starts.line("draft") == "waiting to start"
    starts.phase("target", "loading weights")
    clock.now = 42.0
    assert starts.line("target") == "loading weights, 42 s"
    starts.phase("target", READY)
    assert starts.line("target") == "ready after 42.0 s"
    assert starts.all() == "engines: target ready after 42.0 s · draft waiting to start, 42 s"
    clock.now = 100.0
    starts.phase("target", "starting its process")  # it died
    clock.now = 107.5
    starts.phase("target", READY)
    assert starts.line("target") == "ready after 7.5 s"


def test_programs_log_what_they_do_where_the_command_is_verbose() -> None:
    for verbose in (True, False):
        notices_as(NoticeOptions(verbose=verbose))
        assert Starts({}).verbose is verbose


def test_phases_go_to_who_listens_and_to_nobody_else() -> None:
    heard: list[tuple[str, str]] = []

    class Ear(Listener):
        def phase(self, role: str, phase: str) -> None:
            heard.append((role, phase))

    current_listener().phase("target", "unheard")
    with listening(Ear()):
        current_listener().phase("target", "loading weights")
    current_listener().phase("target", "unheard again")
    assert heard == [("target", "loading weights")]


def run(tmp_path: Path, *options: str | Path) -> tuple[str, str]:
    problems = write_problems(tmp_path)
    done = pipeline("run", "speccot", "--engines", SIM, "--input", problems, "--output", tmp_path / "run", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_quiet_run_prints_the_summary_alone(tmp_path: Path) -> None:
    out, error = run(tmp_path, "--quiet")
    assert error == ""
    assert out.startswith("12 of 12 solved in ")
    assert out.count("\n") == 1


def test_a_quiet_command_prints_errors(tmp_path: Path) -> None:
    done = pipeline("run", "speccot", "--input", tmp_path / "nothing.jsonl", "--quiet")
    assert (done.returncode, done.stderr.startswith("error: ")) == (2, True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/run.json").write_text("{}")
    assert pipeline("show", tmp_path).stderr.startswith(f"{tmp_path}/run/run.json: "), "the next command is not quiet"


def test_lines_are_with_their_times_in_a_file(tmp_path: Path) -> None:
    _, error = run(tmp_path, "--log-file", tmp_path / "run.log")
    logged = (tmp_path / "run.log").read_text().splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d ", "", line) for line in logged] == error.splitlines() != []
    assert set(logged).isdisjoint(error.splitlines())
    run_again = pipeline("resume", tmp_path / "run", "--quiet", "--log-file", tmp_path / "run.log")
    assert run_again.stderr == ""
    assert (tmp_path / "run.log").read_text().splitlines()[: len(logged)] == logged


def test_a_log_file_on_a_full_disk_does_not_end_the_run(tmp_path: Path) -> None:
    out, error = run(tmp_path, "--log-file", "/dev/full")
    assert error.count("no longer written") == 1
    assert "12 of 12 solved" in out


def test_a_log_file_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    problems = write_problems(tmp_path)
    done = pipeline(
        "run", "speccot", "--engines", SIM, "--input", problems, "--output", tmp_path / "run", "--log-file", tmp_path / "no/x.log"
    )
    assert (done.returncode, "not writable" in done.stderr, (tmp_path / "run").exists()) == (2, True, False)
