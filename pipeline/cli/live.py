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
from rich.table import Table
from rich.text import Text

from pipeline.analysis.progress import RecentRates, duration
from pipeline.cli.console import PlainConsole
from pipeline.cli.terminal import log, notice_settings, print_notice
from pipeline.engines.startup import READY, Listener
from pipeline.graph.spec import EngineSpec
from pipeline.run.observer import Work
from pipeline.run.prepare import Prepared

PER_SECOND = 4
"""How often the panel is drawn."""
SAY_AGAIN_S = 30.0
"""Seconds after which a plain line says that a phase is still running."""
LINE_EVERY_S = 10.0
"""Seconds between two plain lines."""
ENOUGH_FOR_SHARES = 20
"""Graded answers from which on a percentage says more than a count."""

OVER, KEPT, WRITTEN = "chains", "kept tokens", "written tokens"
"""Names of the counts that have rates, in addition to `tokens ROLE`."""


@contextmanager
def watch(run: Prepared, work: Work) -> Iterator[None]:
    """Display a run until the block ends, as the command was asked to."""
    facts = [engine.facts for engine in work.engines.values()]  # of replicas they are not known here
    simulated = any(each.get("answers") == "simulated" for each in facts) if facts else run.virtual_time
    meter, chosen = Meter(work, run.record.chains, run.record.samples, simulated=simulated), notice_settings()
    with ExitStack() as stack:
        if has_panel():
            console = PlainConsole(stderr=True)
            stack.enter_context(Live(get_renderable=lambda: panel(meter), console=console, refresh_per_second=PER_SECOND, transient=True))
        if chosen.log_file is not None or not (has_panel() or chosen.quiet):
            say = log if has_panel() else print_notice
            if chosen.verbose:
                say(f"solving {run.record.chains:,} chains, {run.options.schedule}, batch size {run.options.batch_size:,}")
            stack.enter_context(repeated(LINE_EVERY_S, lambda: say(line(meter, verbose=chosen.verbose))))
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
    """The text of the display for a run of `total` chains. Rates are of the last half minute, see `RecentRates`; `look` brings them up to
    date."""

    def __init__(
        self, work: Work, chains: int, samples: int = 1, now: Callable[[], float] = time.monotonic, *, simulated: bool = False
    ) -> None:
        """`samples`: chains of each problem; `now`: the clock, in seconds; `simulated`: answers are made up."""
        self._work, self._chains, self._samples, self._simulated = work, chains, samples, simulated
        self._now, self._rates = now, RecentRates(OVER)
        self.look()

    def look(self) -> None:
        """Take down what has happened so far."""
        progress = self._work.progress
        counts = {OVER: float(progress.done + progress.failed), KEPT: float(progress.kept_tokens), WRITTEN: float(self._tokens())}
        counts |= {f"tokens {role}": float(tokens) for role, tokens in progress.output_tokens.items()}
        self._rates.look(self._now(), counts)

    def progress(self) -> list[str]:
        """How far the run is, and how well it goes."""
        progress, chains = self._work.progress, self._chains
        over, chains_per_s, tokens = progress.done + progress.failed, self._rates.per_s(OVER), f"{self._tokens():,} tokens"
        said = [f"{over:,}/{chains:,}" + (f", {progress.failed:,} failed" if progress.failed else "")]
        if not chains_per_s:
            calls = self._calls()
            return [*said, f"{calls:,} call{'s' * (calls != 1)} answered", f"{tokens}, {self._rates.per_s(WRITTEN) or 0:,.0f}/s"]
        said += [f"{chains_per_s:.3g} {'problems' if self._samples == 1 else 'chains'}/s", tokens]
        return [*said, *filter(None, [self._right()]), f"ETA {duration((chains - over) / chains_per_s)}"]

    def work(self) -> list[str]:
        """What the engines do."""
        work, progress = self._work, self._work.progress
        generated = ", ".join(f"{role} {self._rates.per_s(f'tokens {role}') or 0:,.0f}" for role in progress.output_tokens)
        at = ", ".join(
            f"{role} {lane.in_flight}" + (f" ({lane.waiting} waiting)" if lane.waiting else "") for role, lane in work.lanes.items()
        )
        accepted, fallback, unverified = (progress.decisions[decision] for decision in ("accepted", "fallback", "unverified"))
        which = "verified steps" if unverified else "steps"
        return [
            f"{generated} generated tokens/s, {self._rates.per_s(KEPT) or 0:,.0f} kept tokens/s",
            f"{progress.live} in flight" + (f" ({paused} paused)" if (paused := self._paused()) else "") + (f": {at}" if at else ""),
            *([f"{accepted / (accepted + fallback):.0%} of {which} accepted"] if accepted + fallback else []),
            *([f"{unverified / progress.steps:.0%} of steps unverified"] if unverified else []),
            *self._restarts(),
            *progress.setbacks(),
        ]

    def unusual(self) -> list[str]:
        """What even a short display must say."""
        return [
            *([f"{paused} paused"] if (paused := self._paused()) else []),
            *self._restarts(),
            *self._work.progress.setbacks(),
        ]

    def _tokens(self) -> int:
        """Tokens sampled so far, those of running requests included where the engine counts them."""
        written = {role: engine.statistics().written_tokens or 0 for role, engine in self._work.engines.items()}
        return sum(max(count, written.get(role, 0)) for role, count in self._work.progress.output_tokens.items())

    def _calls(self) -> int:
        return sum(engine.statistics().requests for engine in self._work.engines.values())

    def _paused(self) -> int:
        return 0 if self._work.admission is None else self._work.admission.paused

    def _right(self) -> str:
        """The share of right answers, of few as a count; empty where none is graded, and where answers are made up."""
        graded, correct = self._work.progress.graded, self._work.progress.correct
        if self._simulated or not graded:
            return ""
        return f"{correct} of {graded} right" if graded < ENOUGH_FOR_SHARES else f"{100 * correct / graded:.1f} % right"

    def _restarts(self) -> Iterator[str]:
        for role, engine in self._work.engines.items():
            if restarts := engine.statistics().restarts:
                yield f"{role} restarted {restarts}x"


def line(meter: Meter, *, verbose: bool = False) -> str:
    """Progress as one line of plain text; `verbose`: with what the engines do."""
    meter.look()
    return " · ".join([*meter.progress(), *(meter.work() if verbose else meter.unusual())])


def panel(meter: Meter) -> Group:
    """Progress as two lines, for a terminal: how far the run is, and what the engines do."""
    meter.look()
    return Group(Text(" · ".join(meter.progress()), "bold"), Text(" · ".join(meter.work())))


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

    def late(self, seconds: float) -> list[str]:
        """Engines that have been in one phase for so long and are not ready."""
        return [role for role, (phase, since) in self._phases.items() if phase != READY and self._now() - since >= seconds]

    def say_late(self) -> None:
        """Say which engines have been in one phase for long and are not ready."""
        for role in self.late(SAY_AGAIN_S / 2):
            print_notice(f"engine {role}: {self.line(role)}")

    def table(self) -> Table:
        """A line for each engine, for a terminal."""
        table = Table.grid(padding=(0, 1))
        for role in self._phases:
            table.add_row(Text(f"engine {role}:", "bold"), self.line(role))
        return table

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
        with Live(get_renderable=starts.table, console=console, refresh_per_second=PER_SECOND, transient=True):
            yield starts
    else:
        with repeated(SAY_AGAIN_S, starts.say_late):
            yield starts
    starts.end()
