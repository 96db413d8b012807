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


class Starts(Listener):
    """The phase of each engine that starts, and since when; what engines say is printed as the command was asked to."""

    def __init__(self, specs: Mapping[str, EngineSpec], now: Callable[[], float] = time.monotonic) -> None:
        """`now` is the clock, in seconds."""
        self._now, self._first = now, now()
        self._began = dict.fromkeys(specs, self._first)
        self._phases = {role: ("waiting to start", at) for role, at in self._began.items()}
        self._plain = notice_settings().verbose and not has_panel()
        """Every phase is a line of its own."""
        self._heard = False

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
        """All engines are open; one that starts again later is news."""
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
