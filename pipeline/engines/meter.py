"""What an engine says of itself, in the same way for every engine: how far its start has come, and what it has done since it opened."""

import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from pipeline.engine import EngineStatistics, Usage

READY = "ready"
"""The last phase of a start."""


class Listener:
    """Hears of the starts of engines, which take minutes with a large model, and what their programs print; this one ignores it."""

    verbose = False
    """True if programs should log what they do, besides warnings."""

    def phase(self, role: str, phase: str) -> None:
        """The engine `role` begins with this phase of its start, such as `loading weights`; the last one is `READY`."""

    def output(self, role: str, line: str) -> None:
        """The process of the engine `role` has printed this line."""


NOBODY = Listener()
LISTENER: ContextVar[Listener] = ContextVar("LISTENER", default=NOBODY)
"""Who hears of the engines that this task opens."""


class UsageMeter:
    """The totals of one engine, from usages and the beginnings and ends of calls. It is busy while at least one call is open."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """`now` is the clock, in seconds."""
        self.open_calls = 0
        """Calls that began and have not ended."""
        self._now = now
        self._busy_s = self._busy_since = 0.0
        self._requests = self._input_tokens = self._output_tokens = 0
        self._cached_input_tokens, self._says_cached = 0, False

    def begin(self) -> None:
        """Count the beginning of a call."""
        if not self.open_calls:
            self._busy_since = self._now()
        self.open_calls += 1

    def end(self) -> None:
        """Count the end of a call, with or without an answer."""
        self.open_calls -= 1
        if not self.open_calls:
            self._busy_s += self._now() - self._busy_since

    def count(self, usage: Usage) -> None:
        """Count a request that was answered, and its tokens."""
        self._requests += 1
        self._input_tokens += usage.input_tokens
        self._says_cached = self._says_cached or usage.cached_input_tokens is not None
        self._cached_input_tokens += usage.cached_input_tokens or 0
        self._output_tokens += usage.output_tokens

    @property
    def busy_s(self) -> float:
        """Seconds in which calls were open, until now."""
        return self._busy_s + (self._now() - self._busy_since if self.open_calls else 0.0)

    def statistics(self, **own: Any) -> EngineStatistics:
        """The totals so far, with those that the engine counts; `busy_s` where it knows itself how long it computed."""
        known = {
            "requests": self._requests,
            "input_tokens": self._input_tokens,
            "cached_input_tokens": self._cached_input_tokens if self._says_cached or not self._requests else None,
            "output_tokens": self._output_tokens,
            "busy_s": self.busy_s,
        }
        return EngineStatistics(**known | own)
