"""The time of a run: its clock, the time that overlapping intervals cover, and the waits of retries.

A process that is suspended (Ctrl-Z, SIGSTOP), or for which its machine had no time, receives nothing: `sleep_noticing` tells how long it
did not run, so that nobody takes that time for the engine's.
"""

import hashlib
import math
from collections.abc import Callable

import anyio

UNNOTICED_S = 0.5
"""A sleep that takes no more than this much longer than asked was only late."""
FIRST_BACKOFF_S = 0.5
"""Wait before the first repetition; it doubles with every further one, up to `LONGEST_BACKOFF_S`."""
LONGEST_BACKOFF_S, LONGEST_RETRY_AFTER_S = 30.0, 300.0
"""Longest wait, and longest one that an engine may ask for: a waiting call keeps its place in flight."""


class Clock:
    """The event loop's time in seconds, tied to wall time once at the start, so that no change of the system's clock shows in a row."""

    def __init__(self, started_unix_ns: int, now: Callable[[], float] = anyio.current_time) -> None:
        self.started_unix_ns = started_unix_ns
        self.now = now
        """The present time in seconds, from an arbitrary origin."""
        self._origin = now()

    def unix_ns(self, now: float) -> int:
        """A time of this clock in nanoseconds since 1970."""
        return self.started_unix_ns + round((now - self._origin) * 1e9)


class CoveredTime:
    """Adds up the time that several overlapping intervals cover together: `total_s` seconds."""

    __slots__ = ("_count", "_since", "_until", "total_s")

    def __init__(self) -> None:
        self.total_s, self._since, self._until, self._count = 0.0, 0.0, -math.inf, 0

    def begin(self, now: float) -> None:
        """An interval begins at `now`, in seconds."""
        if not self._count:
            self._since = max(now, self._until)
        self._count += 1

    def end(self, now: float) -> None:
        """An interval that had begun ends at `now`."""
        self._count -= 1
        if not self._count and now > self._since:
            self.total_s += now - self._since
            self._until = now

    def add(self, seconds: float) -> None:
        """Count `seconds` that no interval covers."""
        self.total_s += seconds


async def sleep_noticing(seconds: float, clock: Clock) -> float:
    """Sleep for `seconds`. Returns the number of seconds that this process did not run meanwhile; on virtual time 0."""
    until = clock.now() + seconds
    await anyio.sleep(seconds)
    late_s = clock.now() - until
    return late_s if late_s > UNNOTICED_S else 0.0


def backoff_s(name: str, attempt: int, retry_after_s: float | None = None) -> float:
    """Seconds to wait after `attempt` (from 0) failed; they double with every attempt.

    A hash of `name`, which names what failed, shortens the wait to between half and all of it, so that calls which were
    refused together do not come back together. It is not less than `retry_after_s`, which the engine asked for.
    """
    longest = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(attempt, 64))
    spread = int.from_bytes(hashlib.blake2b(f"{name}\0{attempt}".encode(), digest_size=4).digest()) / (1 << 32)
    return max(longest * (1 + spread) / 2, min(retry_after_s or 0.0, LONGEST_RETRY_AFTER_S))
