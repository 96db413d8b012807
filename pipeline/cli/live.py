"""What a command does beside a run: it displays how engines start and how far the run is, and lets signals stop it.

On a terminal the run has a bar that changes, elsewhere a line every ten seconds. A separate thread reads counters that only the run
changes; the run never waits for the display.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import anyio
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from pipeline.analysis.progress import RecentRates, duration
from pipeline.cli.console import PlainConsole
from pipeline.cli.terminal import CommandOutput, output
from pipeline.engines.meter import READY, Listener
from pipeline.run.loop import Stop
from pipeline.run.prepare import Prepared
from pipeline.runtime.executor import Executor

LINE_EVERY_S = 10.0
"""Seconds between two plain lines."""
ENOUGH_FOR_SHARES = 20
"""Graded answers from which on a percentage says more than a count."""
OVER, KEPT, WRITTEN = "chains", "kept tokens", "written tokens"
"""Names of the counts that have rates."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""The last two are what batch systems announce the end of a job's time with, as Slurm does with `--signal=USR1@120`. One that was ignored
when the program started stays ignored, as POSIX wants it: `nohup` ignores SIGHUP, and a shell that is not interactive ignores SIGINT in
background jobs. While no run listens, Ctrl-C is a `KeyboardInterrupt`."""
DRAIN_S = 10.0
"""Seconds, by the run's clock, that live chains get to end in. Those that do not end are solved further on resume."""
DRAINING = f"interrupted: waiting up to {DRAIN_S:g} s for running chains; interrupt again to stop now"


@contextmanager
def repeated(seconds: float, work: Callable[[], object]) -> Iterator[None]:
    """Call `work` every `seconds` seconds until the block ends, in a separate thread."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            work()

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def has_panel() -> bool:
    """True if a display that changes is to be shown: on a terminal, unless the command is quiet."""
    return PlainConsole(stderr=True).is_terminal and not output().quiet


@contextmanager
def watch(run: Prepared, work: Executor) -> Iterator[None]:
    """Display a run until the block ends, as the command was asked to."""
    simulated = any(engine.facts.get("answers") == "simulated" for engine in work.engines.values())
    meter, out = Meter(work, run.record.input.chains, run.record.input.samples, simulated=simulated), output()
    changing = has_panel()
    say = out.log if changing else out.notice
    panel = Live(get_renderable=meter.panel, console=PlainConsole(stderr=True), transient=True) if changing else nullcontext()
    with panel, repeated(LINE_EVERY_S, lambda: say(meter.line())):
        yield


class Meter:
    """The facts of the display of a run of `chains` chains. Rates are of the last half minute, see `RecentRates`."""

    def __init__(
        self, work: Executor, chains: int, samples: int = 1, now: Callable[[], float] = time.monotonic, *, simulated: bool = False
    ) -> None:
        """`samples`: chains of each problem; `now`: the clock, in seconds; `simulated`: answers are made up."""
        self._work, self._chains, self._samples, self._simulated = work, chains, samples, simulated
        self._now, self._begun, self._rates = now, now(), RecentRates(OVER)
        self._look()

    def line(self) -> str:
        """The facts as one line of plain text."""
        self._look()
        return " · ".join([f"{self._share:.0%}", *self._pace(), *self._quality(), *self._state()])

    def panel(self) -> Group:
        """The facts below a bar, for a terminal."""
        return Group(ProgressBar(1, self._share), Text(self.line()))

    def _look(self) -> None:
        progress, engines = self._work.progress, self._work.engines
        counted = {role: engine.statistics().written_tokens or 0 for role, engine in engines.items()}  # running requests included
        written = sum(max(count, counted.get(role, 0)) for role, count in progress.output_tokens.items())
        self._rates.look(self._now(), {OVER: progress.over, KEPT: progress.kept_tokens, WRITTEN: written})

    @property
    def _share(self) -> float:
        return min(1.0, self._work.progress.over / self._chains) if self._chains else 1.0

    def _pace(self) -> list[str]:
        """How far the run is; until the first chains are over the steps that are done."""
        progress, per_s = self._work.progress, self._rates.per_s(OVER)
        pace = [f"{progress.steps:,} step{'s' * (progress.steps != 1)}"]
        if per_s:
            unit = "problems" if self._samples == 1 else "chains"
            pace = [f"{per_s:.3g} {unit}/s", f"{duration((self._chains - progress.over) / per_s)} left"]
        failed = f", {progress.failed:,} failed" if progress.failed else ""
        return [f"{progress.over:,}/{self._chains:,}{failed}", *pace, f"elapsed {duration(self._now() - self._begun)}"]

    def _quality(self) -> Iterator[str]:
        """How well the run goes."""
        progress = self._work.progress
        if progress.graded and not self._simulated:
            enough = progress.graded >= ENOUGH_FOR_SHARES
            yield f"right {100 * progress.correct / progress.graded:.1f} %" if enough else f"right {progress.correct} of {progress.graded}"
        accepted, fallback, unverified = (progress.decisions[decision] for decision in ("accepted", "fallback", "unverified"))
        if accepted + fallback:
            yield f"{'verified ' if unverified else ''}steps accepted {accepted / (accepted + fallback):.0%}"
        yield f"tokens kept {self._rates.per_s(KEPT) or 0:,.0f}/s of {self._rates.per_s(WRITTEN) or 0:,.0f}/s"

    def _state(self) -> Iterator[str]:
        """What the engines do, and what keeps them from it."""
        work, progress = self._work, self._work.progress
        at = ", ".join(f"{lane.in_flight} {role}{f' ({lane.waiting} waiting)' * bool(lane.waiting)}" for role, lane in work.lanes.items())
        yield f"{progress.live} in flight{f': {at}' * bool(at)}"
        if progress.paused:
            yield f"{progress.paused} paused"
        for role, engine in work.engines.items():
            if restarts := engine.statistics().restarts:
                yield f"{role} restarted {restarts}x"
        yield from progress.setbacks()


class Starts(Listener):
    """Prints the phases of engines that start, and with `--verbose` what their processes print; the log file gets both."""

    def __init__(self, out: CommandOutput | None = None, now: Callable[[], float] = time.monotonic) -> None:
        """`out`: by default the command's output; `now`: the clock, in seconds."""
        self._out, self._now, self._began = out or output(), now, dict[str, float]()
        self.verbose = self._out.verbose

    def phase(self, role: str, phase: str) -> None:
        self._began.setdefault(role, self._now())
        after = f" after {self._now() - self._began.pop(role):.1f} s" if phase == READY else ""
        self._out.notice(f"engine {role}: {phase}{after}")

    def output(self, role: str, line: str) -> None:
        (self._out.notice if self.verbose else self._out.log)(f"engine {role} | {line}")


@contextmanager
def restored_handlers() -> Iterator[None]:
    """Restore the handlers of `STOP_SIGNALS` at the end, when no run listens any more."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


async def stop_on_signal(stop: Stop, *, drains: bool = True, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Drain the run at the first signal; abort it at the second, `DRAIN_S` after the first, or at once where nothing can be drained.

    A task beside a run: it is cancelled when the run is over.
    """
    with _received() as next_signal:
        task_status.started()
        await next_signal()
        if drains and stop.drain():
            output().notice(DRAINING)
            with anyio.move_on_after(DRAIN_S):
                await next_signal()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a further one would lose the rows that are being written
    stop.abort()


stop_at_first_signal = partial(stop_on_signal, drains=False)
"""For a sweep, which repeats an interrupted point from its start anyway."""


@contextmanager
def _received() -> Iterator[Callable[[], Awaitable[signal.Signals]]]:
    """A function that waits for the next of `STOP_SIGNALS` that were not ignored before."""
    heeded = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    loop, received = asyncio.get_running_loop(), asyncio.Queue[signal.Signals]()
    for number in heeded:
        loop.add_signal_handler(number, received.put_nowait, number)
    try:
        yield received.get
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)
