"""The display of a run on stderr, how its engines start and how far it is: lines that change on a terminal, elsewhere plain lines.

A separate thread reads counters that only the run changes; the run never waits for the display.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipeline.analysis.progress import RecentRates, duration
from pipeline.cli.console import PlainConsole
from pipeline.cli.terminal import log, notice_settings, print_notice
from pipeline.engines.startup import READY, Listener
from pipeline.graph.spec import EngineSpec
from pipeline.run.prepare import Prepared
from pipeline.runtime.executor import Executor

PER_SECOND = 4
"""How often the panel is drawn."""
SAY_AGAIN_S = 30.0
"""Seconds after which a plain line says that a phase is still running."""
LINE_EVERY_S = 10.0
"""Seconds between two plain lines."""
ENOUGH_FOR_SHARES = 20
"""Graded answers from which on a percentage says more than a count."""

OVER, KEPT, WRITTEN = "chains", "kept tokens", "written tokens"
"""Names of the counts that have rates."""
BAR_WIDTH = 24
"""Columns of the bar."""


@contextmanager
def watch(run: Prepared, work: Executor) -> Iterator[None]:
    """Display a run until the block ends, as the command was asked to."""
    simulated = any(engine.facts.get("answers") == "simulated" for engine in work.engines.values())
    meter, chosen = Meter(work, run.record.input.chains, run.record.input.samples, simulated=simulated), notice_settings()
    with ExitStack() as stack:
        if has_panel():
            console = PlainConsole(stderr=True)
            stack.enter_context(Live(get_renderable=lambda: panel(meter), console=console, refresh_per_second=PER_SECOND, transient=True))
        if chosen.log_file is not None or not (has_panel() or chosen.quiet):
            say = log if has_panel() else print_notice
            stack.enter_context(repeated(LINE_EVERY_S, lambda: say(line(meter))))
        yield


def has_panel() -> bool:
    """True if a display that changes is to be shown: on a terminal, unless the command was asked for something else."""
    return sys.stderr is not None and PlainConsole(stderr=True).is_terminal and not notice_settings().quiet


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


class Meter:
    """The facts of the display of a run of `chains` chains. Rates are of the last half minute, see `RecentRates`; `look` updates them."""

    def __init__(
        self, work: Executor, chains: int, samples: int = 1, now: Callable[[], float] = time.monotonic, *, simulated: bool = False
    ) -> None:
        """`samples`: chains of each problem; `now`: the clock, in seconds; `simulated`: answers are made up."""
        self._work, self._chains, self._samples, self._simulated = work, chains, samples, simulated
        self._now, self._begun, self._rates = now, now(), RecentRates(OVER)
        self.look()

    def look(self) -> None:
        """Count what has happened so far."""
        progress = self._work.progress
        self._rates.look(self._now(), {OVER: progress.over, KEPT: progress.kept_tokens, WRITTEN: self._written()})

    @property
    def share(self) -> float:
        """The share of the chains that is over, 0 to 1."""
        return min(1.0, self._work.progress.over / self._chains) if self._chains else 1.0

    def progress(self) -> list[str]:
        """How far the run is; until the first chains are over the steps that are done."""
        progress, per_s = self._work.progress, self._rates.per_s(OVER)
        pace = [f"{progress.steps:,} step{'s' * (progress.steps != 1)}"]
        if per_s:
            unit = "problems" if self._samples == 1 else "chains"
            pace = [f"{per_s:.3g} {unit}/s", f"{duration((self._chains - progress.over) / per_s)} left"]
        failed = f", {progress.failed:,} failed" if progress.failed else ""
        return [f"{progress.over:,}/{self._chains:,}{failed}", *pace, f"elapsed {duration(self._now() - self._begun)}"]

    def state(self) -> Iterator[str]:
        """How well the run goes, what the engines do, and what keeps them from it."""
        work, progress = self._work, self._work.progress
        if progress.graded and not self._simulated:
            enough = progress.graded >= ENOUGH_FOR_SHARES
            yield f"right {100 * progress.correct / progress.graded:.1f} %" if enough else f"right {progress.correct} of {progress.graded}"
        accepted, fallback, unverified = (progress.decisions[decision] for decision in ("accepted", "fallback", "unverified"))
        if accepted + fallback:
            yield f"{'verified ' if unverified else ''}steps accepted {accepted / (accepted + fallback):.0%}"
        yield f"tokens kept {self._rates.per_s(KEPT) or 0:,.0f}/s of {self._rates.per_s(WRITTEN) or 0:,.0f}/s"
        at = ", ".join(f"{lane.in_flight} {role}{f' ({lane.waiting} waiting)' * bool(lane.waiting)}" for role, lane in work.lanes.items())
        yield f"{progress.live} in flight{f': {at}' * bool(at)}"
        if progress.paused:
            yield f"{progress.paused} paused"
        for role, engine in work.engines.items():
            if restarts := engine.statistics().restarts:
                yield f"{role} restarted {restarts}x"
        yield from progress.setbacks()

    def _written(self) -> int:
        """Tokens sampled so far, those of running requests included where the engine counts them."""
        written = {role: engine.statistics().written_tokens or 0 for role, engine in self._work.engines.items()}
        return sum(max(count, written.get(role, 0)) for role, count in self._work.progress.output_tokens.items())


def line(meter: Meter) -> str:
    """The facts as one line of plain text."""
    meter.look()
    return " · ".join([f"{meter.share:.0%}", *meter.progress(), *meter.state()])


def panel(meter: Meter) -> Group:
    """The facts as two lines, for a terminal: a bar with how far the run is, and how it goes."""
    meter.look()
    bar = Table.grid(padding=(0, 3))
    bar.add_row(ProgressBar(1, meter.share, width=BAR_WIDTH), Text("   ".join([f"{meter.share:.0%}", *meter.progress()]), "bold"))
    return Group(bar, Text("   ".join(meter.state())))


class Starts(Listener):
    """The phase of each engine that starts, and since when; what engines say is printed as the command was asked to."""

    def __init__(self, specs: Mapping[str, EngineSpec], now: Callable[[], float] = time.monotonic) -> None:
        """`now` is the clock, in seconds."""
        self._now, self._first = now, now()
        self._began = dict.fromkeys(specs, self._first)
        self._phases = {role: ("waiting to start", at) for role, at in self._began.items()}
        self._plain = notice_settings().verbose and not has_panel()
        """Print a line per phase."""
        self._heard, self.verbose = False, notice_settings().verbose

    def phase(self, role: str, phase: str) -> None:
        self._heard = True
        if self._phases[role][0] == READY:  # it died, and starts again
            self._began[role] = self._now()
        self._phases[role] = (phase, self._now())
        say = print_notice if self._plain else log
        say(f"engine {role}: {self.line(role)}")

    def output(self, role: str, line: str) -> None:
        say = print_notice if notice_settings().verbose else log
        say(f"engine {role} | {line}")

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

    def say_late(self) -> None:
        """Print what they do while one of them has been in its phase for long and is not ready."""
        if any(phase != READY and self._now() - since >= SAY_AGAIN_S / 2 for phase, since in self._phases.values()):
            print_notice(self.all())

    def end(self) -> None:
        """The engines are open; one that starts again later is news."""
        if self._heard:
            print_notice(f"engines ready after {self._now() - self._first:.1f} s")
        self._plain = not has_panel()


@contextmanager
def show_starts(specs: Mapping[str, EngineSpec]) -> Iterator[Listener]:
    """Display the engines of `specs` while they start; simulated ones, which start at once, say nothing."""
    starts = Starts(specs)
    if has_panel():
        console = PlainConsole(stderr=True)
        with Live(get_renderable=lambda: Text(starts.all()), console=console, refresh_per_second=PER_SECOND, transient=True):
            yield starts
    else:
        with repeated(SAY_AGAIN_S, starts.say_late):
            yield starts
    starts.end()
