"""Feeds of an executor: problems of an input in their order, or chains that come during the run, from a driver or from clients."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

import anyio
import anyio.to_thread

from pipeline.runtime.admission.order import Item, Start, StartOrder

READ_AHEAD = 256
"""The number of problems that are read from the input at a time."""


class Feed(Protocol):
    """Gives the chains of a run one after the other."""

    async def next(self) -> Start | None:
        """Wait for the chain that begins next; None when no more will come."""

    def ended(self, start: Start, thought_tokens: int) -> None:
        """A chain was finished with a thought of that many tokens."""


class InputFeed:
    """The `Feed` of an input: its problems in the order that `order` decides."""

    def __init__(self, problems: Iterator[Item], order: StartOrder, *, threads: bool) -> None:
        """`threads`: read in a thread; on virtual time, which must not wait for one, at once."""
        self._problems, self._order, self._threads = problems, order, threads
        self._read_all = False

    async def next(self) -> Start | None:
        while True:
            may_begin = self._read_all or not self._order.reads_all
            if may_begin and (start := self._order.take()) is not None:
                return start
            if self._read_all:
                return None
            items = await self._read()
            self._order.add(items)
            self._read_all = not items

    def ended(self, start: Start, thought_tokens: int) -> None:
        self._order.ended(start, thought_tokens)

    async def _read(self) -> list[Item]:
        """The next problems, an empty list at the end."""
        if not self._threads:
            return list(islice(self._problems, READ_AHEAD))
        return await anyio.to_thread.run_sync(lambda: list(islice(self._problems, READ_AHEAD)))


class Arrivals:
    """The `Feed` of chains that come while the run goes on, in the order in which they came."""

    def __init__(self) -> None:
        # By the place of each chain in the run, so that one of thousands can be taken out.
        self._waiting = OrderedDict[int, Start]()
        self._news = anyio.Event()
        self._closed = False
        self.asked = False
        """The executor waits for a chain, so that it would begin at once."""
        self.taken: Callable[[Start], object] = _ignore
        """Called with each chain that begins, before it does."""

    def __len__(self) -> int:
        """The chains that wait."""
        return len(self._waiting)

    def add(self, start: Start) -> None:
        """Add a chain."""
        self._waiting[start.order] = start
        self._news.set()

    def take_back(self, start: Start) -> bool:
        """Take out a chain that has not begun; False where it has."""
        return self._waiting.pop(start.order, None) is not None

    def take_all(self) -> list[Start]:
        """Take out all chains that wait."""
        waiting = [*self._waiting.values()]
        self._waiting.clear()
        return waiting

    def close(self) -> None:
        """No more chains will come: the feed ends after those that wait."""
        self._closed = True
        self._news.set()

    async def next(self) -> Start | None:
        """Waits until a chain is there, or the feed was closed."""
        self.asked = True
        while not self and not self._closed:
            self._news = anyio.Event()
            await self._news.wait()
        self.asked = False
        if not self:
            return None
        _, start = self._waiting.popitem(last=False)
        self.taken(start)
        return start

    def ended(self, start: Start, thought_tokens: int) -> None:
        """Whoever sent it sees it in the row."""


def _ignore(start: Start) -> None:
    return None
