"""Rates of the last half minute: counts enter with the times at which they held, rates leave. Pure."""

from collections import deque
from collections.abc import Mapping

WINDOW_S = 30.0
"""Seconds that rates are over."""
LEAST_ENDED = 8.0
"""Chains that must have ended in the window by which the end of the run is estimated; where fewer did, it is longer than `WINDOW_S`."""
APART_S = 0.5
"""Seconds between two counts that are kept, at least."""


class RecentRates:
    """Growing counts over time, of which as many are kept as the rates of the last `WINDOW_S` seconds need."""

    def __init__(self, slowest: str) -> None:
        """`slowest`: the count of which `LEAST_ENDED` are needed for its own rate."""
        self._slowest = slowest
        self._kept: deque[tuple[float, dict[str, float]]] = deque()

    def look(self, now: float, counts: Mapping[str, float]) -> None:
        """Take down the `counts` at the time `now`, in seconds of any clock."""
        kept = self._kept
        if len(kept) > 1 and now - kept[-2][0] < APART_S:
            kept.pop()
        kept.append((now, dict(counts)))
        while len(kept) > 2 and self._enough(1):
            kept.popleft()

    @property
    def kept(self) -> int:
        """The number of looks that are kept."""
        return len(self._kept)

    def last(self, name: str) -> float:
        """This count at the last look."""
        return self._kept[-1][1][name]

    def per_s(self, name: str) -> float | None:
        """By how much this count grew a second; None before the second look at it."""
        if len(self._kept) < 2:
            return None
        (then, before), (now, after) = self._start(name), self._kept[-1]
        return (after[name] - before.get(name, 0.0)) / (now - then) if now > then else None

    def _start(self, name: str) -> tuple[float, dict[str, float]]:
        """The latest look from which on the window is long enough for this count, or the first one."""
        if name == self._slowest:
            return self._kept[0]
        now = self._kept[-1][0]
        return next((look for look in reversed(self._kept) if now - look[0] >= WINDOW_S), self._kept[0])

    def _enough(self, place: int) -> bool:
        """True if nothing before the look at this place is needed any more."""
        (then, before), (now, after) = self._kept[place], self._kept[-1]
        return now - then >= WINDOW_S and after[self._slowest] - before[self._slowest] >= LEAST_ENDED
