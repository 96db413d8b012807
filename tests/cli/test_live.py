"""What is displayed beside a run: its counts at given times, how engines start; and that lines go where the options say."""

import re
from io import StringIO
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from pipeline.cli.live import Meter, Starts
from pipeline.cli.terminal import CommandOutput
from pipeline.engine import EngineStatistics, Request
from pipeline.engines.meter import READY
from pipeline.run.prepare import load_plan
from pipeline.runtime.clock import Clock
from pipeline.runtime.executor import Executor
from pipeline.runtime.lane import Call, Lane
from pipeline.runtime.progress import Progress
from pipeline.store.resume import ResumeState
from pipeline.store.rows import CallRow
from tests.support.commands import pipeline
from tests.support.paths import ROOT, SIM
from tests.support.rows import blank
from tests.support.runs import write_problems

ROLES = ["draft", "target"]
PLAN = load_plan(ROOT / "graphs/speccot.yaml", SIM, ())


class Counting:
    """The statistics of an engine, set by hand."""

    def __init__(self) -> None:
        self.restarts = self.written_tokens = 0

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(restarts=self.restarts, written_tokens=self.written_tokens)


class Watched:
    """A run on two engines of four calls each, and a meter over it whose clock is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.progress = Progress(PLAN, ResumeState(), print, Clock(0, lambda: self.now))
        self.engines = {role: Counting() for role in ROLES}
        self.lanes = {role: Lane(role, 8) for role in ROLES}
        for lane in self.lanes.values():
            for order in range(4):
                lane.put(Call("draft", order, Request(request_id=str(order), prompt_ids=[1], max_tokens=4)))
                lane.take()
        self.meter = Meter(cast("Executor", self), 10, now=lambda: self.now)


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_how_far_the_run_is_and_what_the_engines_do(watched: Watched) -> None:
    watched.now += 10
    watched.progress.steps = 3
    watched.engines["draft"].written_tokens += 1_000
    assert watched.meter.line().startswith("0% · 0/10 · 3 steps · elapsed 0:10 · tokens kept 0/s of 100/s"), "no chain is over"
    watched.progress.done = 2
    for _ in range(58):
        watched.now += 5
        for engine in watched.engines.values():
            engine.written_tokens += 1_000
    facts = "20% · 2/10 · 0.00667 problems/s · 20:00 left · elapsed 5:00 · tokens kept 0/s of 390/s · 0 in flight: 4 draft, 4 target"
    assert watched.meter.line() == facts
    watched.engines["draft"].restarts = 2
    watched.progress.call(blank(CallRow, error_type="EngineUnavailable", error_message="the server answered 503"))
    said = " · draft restarted 2x · the server answered 503; its calls wait for their next attempt, number 2"
    assert watched.meter.line().endswith(said)
    out = StringIO()
    Console(file=out, width=300).print(watched.meter.panel())
    assert watched.meter.line() in out.getvalue()


def test_few_right_answers_are_counted_and_many_are_a_share(watched: Watched) -> None:
    for graded, correct, said in ((2, 2, "right 2 of 2"), (40, 39, "right 97.5 %")):
        watched.progress.graded, watched.progress.correct = graded, correct
        assert f" · {said} · " in watched.meter.line()


@pytest.mark.parametrize("verbose", [True, False])
def test_engines_say_what_they_do_and_when_they_are_ready(verbose: bool, capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    starts = Starts(CommandOutput(verbose=verbose), lambda: now)
    for at, phase in ((0.0, "loading weights"), (42.0, READY), (100.0, "starting its process"), (107.5, READY)):
        now = at
        starts.phase("target", phase)
    starts.output("target", "a line of its log")
    said = ["loading weights", "ready after 42.0 s", "starting its process", "ready after 7.5 s"]
    logged = ["engine target | a line of its log"] * verbose
    assert capsys.readouterr().err.splitlines() == [f"engine target: {each}" for each in said] + logged


@pytest.mark.slow
def test_what_a_command_says_is_in_its_log_file_and_unless_it_is_quiet_on_stderr(tmp_path: Path) -> None:
    log, other = tmp_path / "run.log", tmp_path / "other.log"
    words = ("run", "speccot", "--engines", SIM, write_problems(tmp_path), "--output")
    said = pipeline(*words, tmp_path / "run", "--log-file", log).stderr.splitlines()
    logged = log.read_text().splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d ", "", line) for line in logged] == said != []
    assert set(logged).isdisjoint(said)
    quiet = pipeline("resume", tmp_path / "run", "--quiet", "--log-file", log)
    assert (quiet.stderr, quiet.stdout.count("\n"), quiet.stdout.startswith("12 of 12 solved in ")) == ("", 1, True)
    assert log.read_text().splitlines()[: len(logged)] == logged
    failed = pipeline("run", "speccot", tmp_path / "nothing.jsonl", "--quiet", "--log-file", other)
    assert (failed.returncode, failed.stderr.startswith("error: ")) == (2, True)
    assert other.read_text().partition(" ")[2] == failed.stderr
    (tmp_path / "run/run.json").write_text("{}")
    assert pipeline("show", tmp_path).stderr.startswith(f"{tmp_path}/run/run.json: "), "the next command is not quiet"
    full = pipeline(*words, tmp_path / "full", "--log-file", "/dev/full")
    assert (full.returncode, full.stderr.count("no longer written"), "12 of 12 solved" in full.stdout) == (0, 1, True), "a full disk"
