"""The display of engines that start, on stderr: on a terminal lines that change, then one line that says how long it took.

With `--verbose` every phase of every engine is a line of its own.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.cli.console import PlainConsole
from pipeline.cli.live import has_panel, repeated
from pipeline.cli.terminal import log, notice_settings, print_notice
from pipeline.engines.startup import READY, Listener
from pipeline.graph.spec import EngineSpec

PER_SECOND = 4
"""How often the lines are drawn."""
SAY_AGAIN_S = 30.0
"""Seconds after which a plain line says that a phase is still running."""


class Starts:
    """The phase of each engine that starts, and since when."""

    def __init__(self, specs: Mapping[str, EngineSpec], now: Callable[[], float] = time.monotonic) -> None:
        """`now` is the clock, in seconds."""
        self._now = now
        self._first = now()
        self._began = dict.fromkeys(specs, self._first)
        self._phases = {role: ("waiting to start", at) for role, at in self._began.items()}

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first engine began to start."""
        return self._now() - self._first

    def take(self, role: str, phase: str) -> None:
        """The engine `role` is in this phase from now on."""
        if self._phases[role][0] == READY:  # it died, and starts again
            self._began[role] = self._now()
        self._phases[role] = (phase, self._now())

    def lines(self) -> list[tuple[str, str]]:
        """The role of each engine, and what it does for how long."""
        return [(role, self.line(role)) for role in self._phases]

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


class Shown(Listener):
    """Displays what engines say: phases in the display or as lines, and where that was asked for what their processes print."""

    def __init__(self, starts: Starts, *, lines: bool) -> None:
        """`lines`: every phase is a line of its own."""
        self._starts, self.lines, self.verbose = starts, lines, notice_settings().verbose
        self.heard = False
        """True if an engine has said anything."""

    def phase(self, role: str, phase: str) -> None:
        self.heard = True
        self._starts.take(role, phase)
        say = print_notice if self.lines else log
        say(f"engine {role}: {self._starts.line(role)}")

    def output(self, role: str, line: str) -> None:
        say = print_notice if notice_settings().verbose else log
        say(f"engine {role} | {line}")


@contextmanager
def show_starts(specs: Mapping[str, EngineSpec]) -> Iterator[Listener]:
    """Display the engines of `specs` while they start; simulated ones, which start at once, say nothing."""
    starts = Starts(specs)
    shown = Shown(starts, lines=notice_settings().verbose and not has_panel())
    if has_panel():
        console = PlainConsole(stderr=True)
        with Live(get_renderable=lambda: _panel(starts), console=console, refresh_per_second=PER_SECOND, transient=True):
            yield shown
    else:
        with repeated(SAY_AGAIN_S, lambda: _say_late(starts)):
            yield shown
    if shown.heard:
        print_notice(f"engines ready after {starts.elapsed_s:.1f} s")
    shown.lines = not has_panel()  # an engine that starts again later is news


def _panel(starts: Starts) -> Table:
    table = Table.grid(padding=(0, 1))
    for role, line in starts.lines():
        table.add_row(Text(f"engine {role}:", "bold"), line)
    return table


def _say_late(starts: Starts) -> None:
    """Say which engines have been in one phase for long and are not ready."""
    for role in starts.late(SAY_AGAIN_S / 2):
        print_notice(f"engine {role}: {starts.line(role)}")
