"""Calls as intervals enter in the order in which they began; each call's slot leaves. Decides, draws nothing."""

from heapq import heappop, heappush


class Slots:
    """The places of one engine: a call takes the lowest one that is free, so that there are as many as were ever in flight at once."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._taken: list[tuple[int, int]] = []
        self.count = 0
        """Slots so far."""

    def take(self, start: int, end: int) -> int:
        """The slot, from 0, of a call from `start` to `end`; no earlier call may have begun later."""
        while self._taken and self._taken[0][0] <= start:
            heappush(self._free, heappop(self._taken)[1])
        if self._free:
            slot = heappop(self._free)
        else:
            slot, self.count = self.count, self.count + 1
        heappush(self._taken, (end, slot))
        return slot
