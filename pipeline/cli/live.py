"""The display of a run's progress on stderr: a panel on a terminal, elsewhere a plain line every few seconds.

A thread of its own reads counters that only the run changes; the run never waits for the display.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pipeline.cli.main import print_notice
from pipeline.cli.terminal.console import PlainConsole
from pipeline.session.run import View

PANEL_PER_SECOND = 2
"""How often the panel is drawn."""
LINE_EVERY_S = 10.0
"""Seconds between two plain lines."""


def watch(view: View) -> AbstractContextManager[object]:
    """A context manager that displays `view` until it ends."""
    meter = Meter(view)
    console = PlainConsole(stderr=True)
    if sys.stderr is not None and console.is_terminal:
        return Live(get_renderable=lambda: panel(meter), console=console, refresh_per_second=PANEL_PER_SECOND, transient=True)
    return _printed_lines(meter)


@contextmanager
def _printed_lines(meter: "Meter") -> Iterator[None]:
    """A line on stderr every `LINE_EVERY_S` seconds, by a thread of its own."""
    stop, view = threading.Event(), meter.view
    print_notice(f"{view.plan.name}: {view.chains} chains, {view.schedule}, batch size {view.batch_size}, in {view.folder}")

    def print_lines() -> None:
        while not stop.wait(LINE_EVERY_S):
            print_notice(line(meter))

    thread = threading.Thread(target=print_lines, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Meter:
    """Counts and rates of a view. Rates are over the real seconds since the meter was made, and count what happened since then."""

    def __init__(self, view: View) -> None:
        self.view, self._started = view, time.monotonic()
        self._over, self._steps, self._tokens = self.over, view.progress.steps, dict(view.progress.output_tokens)

    @property
    def elapsed_s(self) -> float:
        """Real seconds since the meter was made; never 0."""
        return max(time.monotonic() - self._started, 1e-9)

    @property
    def over(self) -> int:
        """Chains that are done or failed."""
        progress = self.view.progress
        return progress.done + progress.failed

    @property
    def waiting(self) -> int:
        """Chains that have not started."""
        return max(0, self.view.chains - self.over - self.view.progress.live)

    @property
    def eta_s(self) -> float | None:
        """Seconds until all chains are over at the mean rate so far; None before one is."""
        fresh = self.over - self._over
        return (self.view.chains - self.over) * self.elapsed_s / fresh if fresh else None

    @property
    def steps_per_s(self) -> float:
        """Committed steps a second."""
        return (self.view.progress.steps - self._steps) / self.elapsed_s

    @property
    def acceptance(self) -> float | None:
        """Accepted steps over verified ones, 0 to 1; None before any is verified."""
        accepted, fallback = self.view.progress.decisions["accepted"], self.view.progress.decisions["fallback"]
        return accepted / (accepted + fallback) if accepted + fallback else None

    def tokens_per_s(self, role: str) -> float:
        """Output tokens a second of the engine with this role."""
        return (self.view.progress.output_tokens[role] - self._tokens[role]) / self.elapsed_s


def line(meter: Meter) -> str:
    """Progress as one line of plain text."""
    view, progress = meter.view, meter.view.progress
    engines = " · ".join(
        f"{role} {meter.tokens_per_s(role):.0f} tok/s, {lane.in_flight} in flight, {lane.waiting} waiting{_restarted(view, role)}"
        for role, lane in view.lanes.items()
    )
    return (
        f"{meter.over}/{view.chains} chains, {progress.live} live, {progress.failed} failed · "
        f"{meter.steps_per_s:.1f} steps/s · accepted {_percent(meter.acceptance)} · {engines} · ETA {_duration(meter.eta_s)}"
    )


def panel(meter: Meter) -> Group:
    """Progress as a bar and a small table, for a terminal."""
    view, progress = meter.view, meter.view.progress
    head = Text.assemble(
        (view.plan.name, "bold"),
        f"  {meter.over}/{view.chains} chains, {progress.live} live, {meter.waiting} waiting",
        (f", {progress.failed} failed" if progress.failed else "", "red"),
        f"  {_duration(meter.elapsed_s)}, ETA {_duration(meter.eta_s)}",
    )
    facts = f"{meter.steps_per_s:.1f} steps/s   accepted {_percent(meter.acceptance)}   "
    facts += f"{view.schedule}, batch size {view.batch_size}   oldest chain {_duration(_oldest_s(view))}"
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("engine", "tokens/s", "in flight", "waiting", "running", "kv cache"):
        table.add_column(title, justify="left" if title == "engine" else "right")
    for role, lane in view.lanes.items():
        statistics = view.engines[role].statistics()
        table.add_row(
            f"{role}{_restarted(view, role)}",
            f"{meter.tokens_per_s(role):,.0f}",
            f"{lane.in_flight}/{lane.max_in_flight}",
            f"{lane.waiting + statistics.waiting}",
            f"{statistics.running}",
            f"{statistics.kv_cache_usage:.0%}",
        )
    bar = Table.grid()  # a bar by itself does not end its line
    bar.add_row(ProgressBar(total=view.chains, completed=meter.over, width=60))
    return Group(head, bar, Text(facts), table)


def _restarted(view: View, role: str) -> str:
    restarts = view.engines[role].statistics().restarts
    return f", restarted {restarts}x" if restarts else ""


def _oldest_s(view: View) -> float | None:
    """Seconds since the oldest live chain started; None on virtual time, whose seconds mean nothing to a person who waits."""
    started = next(iter(view.progress.oldest.values()), None)
    return None if started is None or view.virtual_time else time.monotonic() - started


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
