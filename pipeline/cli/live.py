"""The display of a run's progress on stderr: a panel on a terminal, elsewhere a plain line every few seconds.

A thread of its own reads counters that only the run changes; the run never waits for the display.
"""

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rich.console import Group
from rich.live import Live
from rich.text import Text

from pipeline.cli.console import PlainConsole
from pipeline.cli.rates import RecentRates
from pipeline.cli.terminal import log, notice_settings, print_notice
from pipeline.session.observer import SOLVING, ReplicaState, View

PANEL_PER_SECOND = 2
"""How often the panel is drawn."""
LINE_EVERY_S = 10.0
"""Seconds between two plain lines."""
ENOUGH_FOR_SHARES = 20
"""Graded answers from which on a percentage says more than a count."""

OVER, KEPT = "chains", "kept tokens"
"""Names of the counts that have rates, in addition to `tokens ROLE`."""


@contextmanager
def watch(view: View) -> Iterator[None]:
    """Display `view` until the block ends, as the command was asked to."""
    meter, chosen = Meter(view), notice_settings()
    with ExitStack() as stack:
        if has_panel():
            console = PlainConsole(stderr=True)
            stack.enter_context(
                Live(get_renderable=lambda: panel(meter), console=console, refresh_per_second=PANEL_PER_SECOND, transient=True)
            )
        if chosen.log_file is not None or not (has_panel() or chosen.quiet):
            say = log if has_panel() else print_notice
            if chosen.verbose:
                say(f"solving {view.chains:,} chains, {view.schedule}, batch size {view.batch_size:,}")
            stack.enter_context(repeated(LINE_EVERY_S, lambda: say(line(meter, verbose=chosen.verbose))))
        yield


def has_panel() -> bool:
    """True if a display that changes is to be shown: on a terminal, unless the command was asked for something else."""
    chosen = notice_settings()
    return sys.stderr is not None and PlainConsole(stderr=True).is_terminal and not (chosen.quiet or chosen.timestamps)


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
    """What the display says of a view. Rates are of the last half minute, see `RecentRates`; `look` brings them up to date."""

    def __init__(self, view: View, now: Callable[[], float] = time.monotonic) -> None:
        """`now` is the clock, in seconds."""
        self.view, self._now, self._rates = view, now, RecentRates(OVER)
        self.look()

    def look(self) -> None:
        """Take down what has happened so far."""
        progress = self.view.progress
        counts = {OVER: float(progress.done + progress.failed), KEPT: float(progress.kept_tokens)}
        counts |= {f"tokens {role}": float(tokens) for role, tokens in progress.output_tokens.items()}
        self._rates.look(self._now(), counts)

    def progress(self) -> list[str]:
        """How far the run is, and how well it goes."""
        view, progress = self.view, self.view.progress
        over, chains_per_s = progress.done + progress.failed, self._rates.per_s(OVER) or 0.0
        written = {role: engine.statistics().written_tokens or 0 for role, engine in view.engines.items()}
        tokens = sum(max(count, written.get(role, 0)) for role, count in progress.output_tokens.items())
        return [
            f"{over:,}/{view.chains:,}" + (f", {progress.failed:,} failed" if progress.failed else ""),
            f"{chains_per_s:.3g} {'problems' if view.samples == 1 else 'chains'}/s",
            f"{tokens:,} tokens",
            *filter(None, [self._right()]),
            f"ETA {duration((view.chains - over) / chains_per_s if chains_per_s else None)}",
        ]

    def work(self) -> list[str]:
        """What the engines do."""
        view, progress = self.view, self.view.progress
        generated = ", ".join(f"{role} {self._rates.per_s(f'tokens {role}') or 0:,.0f}" for role in progress.output_tokens)
        at = ", ".join(
            f"{role} {lane.in_flight}" + (f" ({lane.waiting} waiting)" if lane.waiting else "") for role, lane in view.lanes.items()
        )
        accepted, fallback = progress.decisions["accepted"], progress.decisions["fallback"]
        return [
            f"{generated} generated tokens/s, {self._rates.per_s(KEPT) or 0:,.0f} kept tokens/s",
            f"{progress.live} in flight" + (f" ({paused} paused)" if (paused := self._paused()) else "") + (f": {at}" if at else ""),
            *([f"{accepted / (accepted + fallback):.0%} of steps accepted"] if accepted + fallback else []),
            *([_replicas(states)] if (states := view.replicas()) else []),
            *self._restarts(),
        ]

    def unusual(self) -> list[str]:
        """What a person should know even of a run that is told in short."""
        states = self.view.replicas()
        return [
            *([f"{paused} paused"] if (paused := self._paused()) else []),
            *([_replicas(states)] if any(state.what != SOLVING for state in states) else []),
            *self._restarts(),
        ]

    def _paused(self) -> int:
        return 0 if self.view.admission is None else self.view.admission.paused

    def _right(self) -> str:
        """The share of right answers, of few as a count; empty where none is graded, and where answers are made up."""
        graded, correct = (0, 0) if self.view.simulated else self.view.graded()
        if graded >= ENOUGH_FOR_SHARES:
            return f"{100 * correct / graded:.1f} % right"
        return f"{correct} of {graded} right" if graded else ""

    def _restarts(self) -> Iterator[str]:
        for role, engine in self.view.engines.items():
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


def _replicas(states: Sequence[ReplicaState]) -> str:
    """The number of replicas that solve, and of those that do anything else, without the reasons."""
    counts = Counter(state.what if state.what == SOLVING else state.what.partition(":")[0] for state in states)
    others = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()) if what != SOLVING)
    return f"{counts[SOLVING]} of {len(states)} replicas {SOLVING}" + (f" ({others})" if others else "")


def duration(seconds: float | None) -> str:
    """A time as `1:02:03` or `2:03`, in hours, minutes and seconds; `-` where it is not known."""
    if seconds is None:
        return "-"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
