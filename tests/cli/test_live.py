"""What there is beside a run: its display, how engines start, where lines go, signals, which ask it to stop, and metrics."""

import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import anyio
import anyio.lowlevel
import httpx2
import pytest
from prometheus_client.core import Metric
from rich.console import Console

from pipeline.cli.live import DRAINING, STOP_SIGNALS, Meter, Starts, restored_handlers, stop_at_first_signal, stop_on_signal
from pipeline.cli.metrics import RequestMetrics, RunMetrics, metrics_served
from pipeline.cli.terminal import CommandOutput
from pipeline.engine import EngineStatistics, Request
from pipeline.engines.meter import READY
from pipeline.options import RunOptions
from pipeline.run.loop import Stop, attended, in_loop
from pipeline.run.prepare import Prepared, load_plan
from pipeline.run.run import Observer, run
from pipeline.runtime.admission.feed import Arrivals
from pipeline.runtime.clock import Clock
from pipeline.runtime.executor import Executor
from pipeline.runtime.lane import Call, Lane
from pipeline.runtime.progress import Progress
from pipeline.serve.desk import Desk, ServeLimits
from pipeline.store.resume import ResumeState
from pipeline.store.rows import CallRow
from tests.support.commands import pipeline
from tests.support.paths import ROOT, SIM
from tests.support.rows import blank
from tests.support.runs import write_problems

ROLES = ["draft", "target"]
PLAN = load_plan(ROOT / "graphs/speccot.yaml", SIM, ())


class Watched:
    """A run on two engines of four calls each, and a meter over it whose clock is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.progress = Progress(PLAN, ResumeState(), print, Clock(0, lambda: self.now))
        self.counts = {role: {"restarts": 0, "written_tokens": 0} for role in ROLES}
        self.engines = {role: SimpleNamespace(statistics=partial(self._statistics, role)) for role in ROLES}
        self.lanes = {role: Lane(role, 8) for role in ROLES}
        for lane in self.lanes.values():
            for order in range(4):
                lane.put(Call("draft", order, Request(request_id=str(order), prompt_ids=[1], max_tokens=4)))
                lane.take()
        self.meter = Meter(cast("Executor", self), 10, now=lambda: self.now)

    def _statistics(self, role: str) -> EngineStatistics:
        return EngineStatistics(**self.counts[role])


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_how_far_the_run_is_and_what_the_engines_do(watched: Watched) -> None:
    watched.now += 10
    watched.progress.steps = 3
    watched.counts["draft"]["written_tokens"] += 1_000
    assert watched.meter.line().startswith("0% · 0/10 · 3 steps · elapsed 0:10 · tokens kept 0/s of 100/s"), "no chain is over"
    watched.progress.done = 2
    for _ in range(58):
        watched.now += 5
        for counts in watched.counts.values():
            counts["written_tokens"] += 1_000
    facts = "20% · 2/10 · 0.00667 problems/s · 20:00 left · elapsed 5:00 · tokens kept 0/s of 390/s · 0 in flight: 4 draft, 4 target"
    assert watched.meter.line() == facts
    watched.counts["draft"]["restarts"] = 2
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


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    with restored_handlers():
        yield


async def send(number: signal.Signals, has_effect: Callable[[], bool]) -> None:
    """Send the signal to this process and wait for its effect."""
    os.kill(os.getpid(), number)
    with anyio.fail_after(60):
        while not has_effect():
            await anyio.lowlevel.checkpoint()


class Drained(Stop):
    """What becomes of a run that can be drained."""

    drained = False

    def drain(self) -> bool:
        self.drained = True
        return True


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_drains_the_second_aborts_and_what_was_ignored_stays_ignored(
    virtual: bool, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGHUP is ignored under nohup, SIGINT in the background of a script; here all but one are."""
    ignored = set(STOP_SIGNALS) - {number}
    for each in ignored:
        signal.signal(each, signal.SIG_IGN)

    async def main() -> None:
        stop = Drained()
        async with anyio.create_task_group() as tasks:
            await tasks.start(stop_on_signal, stop)
            for each in ignored:
                assert signal.getsignal(each) is signal.SIG_IGN
                os.kill(os.getpid(), each)
            await anyio.wait_all_tasks_blocked()
            assert not stop.drained
            await send(number, lambda: stop.drained)
            assert all(signal.getsignal(each) is signal.SIG_IGN for each in ignored)
            assert not stop.aborted
            await send(number, lambda: stop.aborted)

    in_loop(main, virtual=virtual)
    assert capsys.readouterr().err == DRAINING + "\n"


@pytest.mark.parametrize("ignored", [STOP_SIGNALS, STOP_SIGNALS[:2]], ids=["all", "two"])
def test_a_run_that_ends_normally_leaves_signals_as_they_were(ignored: Sequence[signal.Signals]) -> None:
    """The task that listens is cancelled. Where all are ignored it waits for none."""
    for each in ignored:
        signal.signal(each, signal.SIG_IGN)
    before = [signal.getsignal(each) for each in STOP_SIGNALS]

    async def main(stop: Stop) -> str:
        assert [signal.getsignal(each) is signal.SIG_IGN for each in STOP_SIGNALS] == [each in ignored for each in STOP_SIGNALS]
        for each in ignored:
            os.kill(os.getpid(), each)
        await anyio.wait_all_tasks_blocked()
        return "its result" if not stop.aborted else "stopped"

    assert anyio.run(attended, main, stop_at_first_signal) == "its result"
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before


def interrupt_from_here() -> None:
    """Let this thread get a signal while the main one waits in its event loop."""
    while sys._current_frames()[threading.main_thread().ident or 0].f_code.co_name != "select":
        os.sched_yield()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


def test_one_that_another_thread_gets_is_heard_at_once() -> None:
    """As is one that comes right before the main thread waits: neither ends the wait by itself."""
    stop = Stop()

    async def main() -> None:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                await tasks.start(stop_at_first_signal, stop)
                threading.Thread(target=interrupt_from_here).start()
        assert stop.aborted

    anyio.run(main)


@pytest.mark.slow
def test_metrics_of_a_run_that_goes_on(tmp_path: Path) -> None:
    found: list[Metric] = [*RequestMetrics(Desk(Arrivals(), ServeLimits(), "</think>")).collect()]
    pages: list[str] = []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/metrics"

    @contextmanager
    def watch(run: Prepared, work: Executor) -> Iterator[None]:
        """Ask when the run has begun and when it ends."""
        pages.append(httpx2.get(url).text)
        yield
        pages.append(httpx2.get(url).text)
        found.extend(RunMetrics(run.plan, run.record.input.chains, work).collect())

    with metrics_served("127.0.0.1", port, Observer(watch=watch)) as observer:
        problems = (str(write_problems(tmp_path)),)
        result = run(RunOptions(graph=ROOT / "graphs/speccot.yaml", engines=SIM, input=problems, output=tmp_path / "run"), observer)
    before, after = pages
    assert "pipeline:chains 12.0" in before
    assert 'pipeline:chains_ended_total{outcome="done"} 0.0' in before
    assert 'pipeline:chains_ended_total{outcome="done"} 12.0' in after
    assert f"pipeline:chains_correct_total {float(result.run.totals.correct)}" in after
    tokens = result.run.engine_statistics["target"].output_tokens
    assert f'pipeline:generation_tokens_total{{engine="target",model_name="QwQ-32B"}} {float(tokens)}' in after
    with pytest.raises(httpx2.ConnectError, match="refused"):
        httpx2.get(url)
    names = {f"{metric.name}_total" if metric.type == "counter" else metric.name for metric in found}
    assert set(re.findall(r"`(pipeline:[a-z_]+)(?:\{\w+\})?`", (ROOT / "docs/pages/guides/observability.md").read_text())) == names
