"""What a command does beside a run: it displays how engines start and how far the run is, and lets signals stop it.

On a terminal the display is lines that change, elsewhere plain lines. A separate thread reads counters that only the run changes; the run
never waits for the display.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial

import anyio
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipeline.analysis.progress import RecentRates, duration
from pipeline.cli.console import PlainConsole
from pipeline.cli.terminal import CommandOutput, output
from pipeline.engines.startup import READY, Listener
from pipeline.graph.spec import EngineSpec
from pipeline.run.loop import Stop
from pipeline.run.prepare import Prepared
from pipeline.runtime.executor import Executor

PER_SECOND = 4
"""How often lines that change are drawn."""
LINE_EVERY_S = 10.0
"""Seconds between two plain lines."""
START_LINE_S = 30.0
"""Seconds between two plain lines about engines that start."""
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
    """True if lines that change are to be shown: on a terminal, unless the command is quiet."""
    return PlainConsole(stderr=True).is_terminal and not output().quiet


@contextmanager
def drawn(draw: Callable[[], Group | Text]) -> Iterator[None]:
    """Draw lines that change on the terminal until the block ends, if there is one."""
    if has_panel():
        with Live(get_renderable=draw, console=PlainConsole(stderr=True), refresh_per_second=PER_SECOND, transient=True):
            yield
    else:
        yield


@contextmanager
def watch(run: Prepared, work: Executor) -> Iterator[None]:
    """Display a run until the block ends, as the command was asked to."""
    simulated = any(engine.facts.get("answers") == "simulated" for engine in work.engines.values())
    meter, out = Meter(work, run.record.input.chains, run.record.input.samples, simulated=simulated), output()
    say = out.log if has_panel() else out.notice
    with drawn(meter.panel), repeated(LINE_EVERY_S, lambda: say(meter.line())) if out.log_file or not has_panel() else nullcontext():
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
        """The facts as three lines, for a terminal: a bar with how far the run is, how it goes, and what the engines do."""
        self._look()
        bar = Table.grid(padding=(0, 3), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(ProgressBar(1, self._share), Text("   ".join([f"{self._share:.0%}", *self._pace()]), "bold"))
        return Group(bar, Text("   ".join(self._quality())), Text("   ".join(self._state())))

    def _look(self) -> None:
        progress, engines = self._work.progress, self._work.engines
        counted = {role: engine.statistics().written_tokens or 0 for role, engine in engines.items()}  # with those of running requests
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
    """The phase of each engine that starts, and since when; what its processes say goes to `out`."""

    def __init__(self, specs: Mapping[str, EngineSpec], out: CommandOutput, now: Callable[[], float] = time.monotonic) -> None:
        """`now` is the clock, in seconds."""
        self.verbose, self.heard = out.verbose, False
        self._now, self._detail = now, out.notice if out.verbose else out.log
        self._began = dict.fromkeys(specs, now())
        self._phases = {role: ("waiting to start", at) for role, at in self._began.items()}

    def phase(self, role: str, phase: str) -> None:
        self.heard = True
        if self._phases[role][0] == READY:  # it died, and starts again
            self._began[role] = self._now()
        self._phases[role] = (phase, self._now())
        self._detail(f"engine {role}: {self.line(role)}")

    def output(self, role: str, line: str) -> None:
        self._detail(f"engine {role} | {line}")

    def line(self, role: str) -> str:
        """What the engine `role` does, and for how long."""
        phase, since = self._phases[role]
        if phase == READY:
            return f"ready after {since - self._began[role]:.1f} s"
        spent = self._now() - since
        return f"{phase}, {spent:.0f} s" if spent >= 1 else phase

    def all(self) -> str:
        """What all engines do, in one line."""
        return "engines: " + " · ".join(f"{role} {self.line(role)}" for role in self._phases)


@contextmanager
def show_starts(specs: Mapping[str, EngineSpec]) -> Iterator[Listener]:
    """Display the engines of `specs` while they start; simulated ones, which start at once, say nothing."""
    out, began = output(), time.monotonic()
    starts = Starts(specs, out)
    with drawn(lambda: Text(starts.all())), nullcontext() if has_panel() else repeated(START_LINE_S, lambda: out.notice(starts.all())):
        yield starts
    if starts.heard:
        out.notice(f"engines ready after {time.monotonic() - began:.1f} s")


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
