"""The queue of the client and of engines that order their own: lowest key first, and no item waits forever."""

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

T = TypeVar("T")
OLDEST_EVERY = 8
"""One in this many items that are taken is the oldest, whatever its key."""
FEW = 128
"""A heap of no more items than this, and two for each that waits, is not searched for those that left."""


class AgeingQueue(Generic[T]):
    """Hashable items that wait, each once; of equal keys the older goes first.

    What holds whenever no method runs: `_ages` holds the items that wait, oldest first, and `_heap` each of them by its key; an item that
    left as the oldest, or was dropped, may still be in `_heap`.
    """

    def __init__(self) -> None:
        self._ages: OrderedDict[T, None] = OrderedDict()
        self._heap: list[tuple[Any, int, T]] = []
        self._put = self._taken = 0

    def __len__(self) -> int:
        return len(self._ages)

    def __contains__(self, item: T) -> bool:
        return item in self._ages

    def put(self, key: Any, item: T) -> None:
        """Add an item."""
        self._put += 1
        self._ages[item] = None
        heappush(self._heap, (key, self._put, item))

    @property
    def head(self) -> T:
        """The item that is taken next; the queue must not be empty."""
        if self._taken % OLDEST_EVERY == OLDEST_EVERY - 1:
            return next(iter(self._ages))
        while self._heap[0][-1] not in self._ages:
            heappop(self._heap)
        return self._heap[0][-1]

    def take(self) -> T:
        """Take out the `head`."""
        item = self.head
        self._taken += 1
        self.drop(item)
        return item

    def drop(self, item: T) -> None:
        """Take out an item that waits, out of turn."""
        del self._ages[item]
        if len(self._heap) > FEW + 2 * len(self._ages):
            self._heap = [entry for entry in self._heap if entry[-1] in self._ages]
            heapify(self._heap)
