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
SILENT_S = 10.0
"""An engine that has calls is silent at the earliest when it has answered none of them for this long."""
SILENT_TIMES = 2.0
"""And not before this many times the longest time between two of its answers so far."""
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


class AnswerSilence:
    """For how long one engine has had calls and shown no sign of work on them: no answer, and where it counts them no token."""

    def __init__(self, now: float) -> None:
        """`now` and all later times are in seconds of one clock."""
        self._since, self._answers, self._longest_s = now, 0, 0.0

    def seconds(self, now: float, answers: int, in_flight: int) -> float | None:
        """How long it is silent already; None where it has no calls or may well be at work. `answers` grows with every answer."""
        if answers != self._answers:
            self._longest_s = max(self._longest_s, now - self._since)
        if answers != self._answers or not in_flight:
            self._since, self._answers = now, answers
        silent_s = now - self._since
        return silent_s if silent_s >= max(SILENT_S, SILENT_TIMES * self._longest_s) else None


class Meter:
    """What the display says of a view. Rates are of the last half minute, see `RecentRates`; `look` brings them up to date."""

    def __init__(self, view: View, now: Callable[[], float] = time.monotonic) -> None:
        """`now` is the clock, in seconds."""
        self.view, self._now, self._started = view, now, now()
        self._silences = {role: AnswerSilence(self._started) for role in view.lanes}
        self._rates = RecentRates(OVER)
        self.look()

    def look(self) -> None:
        """Take down what has happened so far."""
        progress = self.view.progress
        counts = {OVER: float(self.over), KEPT: float(progress.kept_tokens)}
        counts |= {f"tokens {role}": float(tokens) for role, tokens in progress.output_tokens.items()}
        self._rates.look(self._now(), counts)

    def silent_s(self, role: str) -> float | None:
        """For how many real seconds the engine of `role` has been silent; None where it is not, and on virtual time."""
        if self.view.virtual_time:
            return None
        known = self.view.engines[role].statistics()
        answers = known.requests + self.view.progress.output_tokens[role] + (known.written_tokens or 0)
        return self._silences[role].seconds(self._now(), answers, self.view.lanes[role].in_flight)

    @property
    def over(self) -> int:
        """Chains that are done or failed."""
        progress = self.view.progress
        return progress.done + progress.failed

    @property
    def live(self) -> str:
        """Chains that live, and how many of them pause."""
        paused = 0 if self.view.admission is None else self.view.admission.paused
        return f"{self.view.progress.live} in flight" + (f" ({paused} paused)" if paused else "")

    @property
    def eta_s(self) -> float | None:
        """Seconds until all chains are over at the present rate; None before that is known, and while an engine is silent."""
        rate = self._rates.per_s(OVER)
        if not rate or any(self.silent_s(role) is not None for role in self.view.lanes):
            return None
        return (self.view.chains - self.over) / rate

    @property
    def chains_per_s(self) -> float:
        """Chains that end a second."""
        return self._rates.per_s(OVER) or 0.0

    @property
    def kept_tokens_per_s(self) -> float:
        """Tokens of steps and answers a second; see `Progress.kept_tokens`."""
        return self._rates.per_s(KEPT) or 0.0

    @property
    def acceptance(self) -> float | None:
        """Accepted steps over verified ones, 0 to 1; None before any is verified."""
        accepted, fallback = self.view.progress.decisions["accepted"], self.view.progress.decisions["fallback"]
        return accepted / (accepted + fallback) if accepted + fallback else None

    @property
    def generated_tokens(self) -> int:
        """Tokens sampled so far, those of calls in flight included where the engine counts them."""
        answered = self.view.progress.output_tokens
        written = {role: engine.statistics().written_tokens or 0 for role, engine in self.view.engines.items()}
        return sum(max(tokens, written.get(role, 0)) for role, tokens in answered.items())

    @property
    def right(self) -> str:
        """The share of right answers, of few as a count; empty where none is graded, and where answers are made up."""
        graded, correct = (0, 0) if self.view.simulated else self.view.graded()
        if graded >= ENOUGH_FOR_SHARES:
            return f"{100 * correct / graded:.1f} % right"
        return f"{correct} of {graded} right" if graded else ""

    def tokens_per_s(self, role: str) -> float:
        """Output tokens a second of the engine with this role."""
        return self._rates.per_s(f"tokens {role}") or 0.0


def line(meter: Meter, *, verbose: bool = False) -> str:
    """Progress as one line of plain text; `verbose`: with what the engines do."""
    meter.look()
    return " · ".join([*_far(meter), *(_work(meter) if verbose else _unusual(meter))])


def _far(meter: Meter) -> list[str]:
    """How far the run is, and how well it goes."""
    failed = meter.view.progress.failed
    return [
        f"{meter.over:,}/{meter.view.chains:,}" + (f", {failed:,} failed" if failed else ""),
        f"{meter.chains_per_s:.3g} {'problems' if meter.view.samples == 1 else 'chains'}/s",
        f"{meter.generated_tokens:,} tokens",
        *filter(None, [meter.right]),
        f"ETA {duration(meter.eta_s)}",
    ]


def _work(meter: Meter) -> list[str]:
    """What the engines do."""
    view, roles = meter.view, meter.view.progress.output_tokens
    generated = ", ".join(f"{role} {meter.tokens_per_s(role):,.0f}" for role in roles)
    queued = {role: f" ({lane.waiting} waiting)" if lane.waiting else "" for role, lane in view.lanes.items()}
    at = ", ".join(f"{role} {lane.in_flight}{queued[role]}" for role, lane in view.lanes.items())
    return [
        f"{generated} generated tokens/s, {meter.kept_tokens_per_s:,.0f} kept tokens/s",
        meter.live + (f": {at}" if at else ""),
        *([] if meter.acceptance is None else [f"{meter.acceptance:.0%} of steps accepted"]),
        *([_replicas(states)] if (states := view.replicas()) else []),
        *_silent(meter),
    ]


def _unusual(meter: Meter) -> list[str]:
    """What a person should know even of a run that is told in short."""
    states, admission = meter.view.replicas(), meter.view.admission
    paused = 0 if admission is None else admission.paused
    return [
        *([f"{paused} paused"] if paused else []),
        *([_replicas(states)] if any(state.what != SOLVING for state in states) else []),
        *_silent(meter),
    ]


def _silent(meter: Meter) -> list[str]:
    """Engines that have calls and do not answer, or were restarted."""
    return [f"{role}{notes}" for role in meter.view.lanes if (notes := _notes(meter, role))]


def _replicas(states: Sequence[ReplicaState]) -> str:
    """The number of replicas that solve, and of those that do anything else, without the reasons."""
    counts = Counter(state.what if state.what == SOLVING else state.what.partition(":")[0] for state in states)
    others = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()) if what != SOLVING)
    return f"{counts[SOLVING]} of {len(states)} replicas {SOLVING}" + (f" ({others})" if others else "")


def panel(meter: Meter) -> Group:
    """Progress as two lines, for a terminal: how far the run is, and what the engines do."""
    meter.look()
    return Group(Text(" · ".join(_far(meter)), "bold"), Text(" · ".join(_work(meter))))


def _notes(meter: Meter, role: str) -> str:
    """What is unusual about an engine."""
    restarts, silent_s = meter.view.engines[role].statistics().restarts, meter.silent_s(role)
    restarted = f", restarted {restarts}x" if restarts else ""
    return restarted + (f", no answer for {duration(silent_s)}" if silent_s is not None else "")


def duration(seconds: float | None) -> str:
    """A time as `1:02:03` or `2:03`, in hours, minutes and seconds; `-` where it is not known."""
    if seconds is None:
        return "-"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
