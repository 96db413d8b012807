"""In place of an `Adaptive`: what switches all chains at given times, and runs with it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.runtime.speculation.modes import NOTHING_KNOWN, Mode, ModeDecision
from pipeline.session import chains
from pipeline.session.run import SessionResult
from tests.support.runs import solve


class AtTimes:
    """Begins direct; at each of `times`, in seconds since the first chain came, the other mode begins for all chains."""

    def __init__(self, *times: float) -> None:
        self.times = times
        self.began: float | None = None
        self.live: dict[int, Mode | None] = {}
        """The mode in which each chain in its loop writes; None before it asked."""
        self.calls: list[dict[str, Any]] = []
        self.written: list[tuple[int, Mode, int, bool]] = []
        self.entered = self.left = 0
        self.paused: list[int] = []
        self.resumed: list[int] = []
        self.changes: list[ModeDecision] = []
        self.max_running: int | None = None
        self.knowledge = NOTHING_KNOWN
        self._now = 0.0

    def enter(self, order: int, now: float) -> None:
        self.began = now if self.began is None else self.began
        self.live[order] = None
        self.entered += 1
        self._now = now

    def leave(self, order: int, now: float) -> None:
        del self.live[order]
        self.left += 1

    def pause(self, order: int, now: float) -> None:
        self.paused.append(order)

    def resume(self, order: int, now: float) -> None:
        self.resumed.append(order)

    def mode(self, order: int, context_tokens: int, now: float) -> Mode:
        self.live[order] = mode = self._mode(now)
        return mode

    def wrote(self, order: int, mode: Mode, tokens: int, accepted: bool, now: float) -> None:
        self.written.append((order, mode, tokens, accepted))
        self.live[order] = None

    def called(self, **call: Any) -> None:
        self.calls.append(call)

    def interrupts(self, now: float) -> Sequence[int]:
        self._now = now
        if self._mode(now) == "direct":
            return ()
        found = [order for order, mode in self.live.items() if mode == "direct"]
        for order in found:
            self.live[order] = None
        if found:
            self.changes.append(
                ModeDecision(
                    time=now, what="speculation on", speculating=len(self.live), live=len(self.live), speculative=None, direct=None
                )
            )
        return found

    def wake(self) -> float:
        return min((self.began + time for time in self.times if self.began is not None and self.began + time > self._now), default=math.inf)

    def _mode(self, now: float) -> Mode:
        assert self.began is not None
        return "speculative" if sum(self.began + time <= now for time in self.times) % 2 else "direct"


def solve_switched(monkeypatch: pytest.MonkeyPatch, control: Any, folder: Path, name: str = "run", **options: Any) -> SessionResult:
    """A run with `speculate: auto` that `control` switches."""
    monkeypatch.setattr(chains, "new_control", lambda *about: control)
    settings = ("speculate=auto", *options.pop("settings", ()))
    return solve(folder, name, settings=settings, **options)
