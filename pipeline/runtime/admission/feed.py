"""Feeds of an executor: problems of an input in their order, or chains that come during the run, from a driver or from clients."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
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
        self._first, self._spare = OrderedDict[int, Start](), OrderedDict[int, Start]()
        self._news = anyio.Event()
        self._closed = False
        self.asked = False
        """The executor waits for a chain, so that it would begin at once."""
        self.taken: Callable[[Start], object] = _ignore
        """Called with each chain that begins, before it does."""
        self.on_disk: Callable[[], Awaitable[bool]] = _kept
        """Waits until all rows of the run so far are on disk; False where they cannot be written."""

    def __len__(self) -> int:
        return len(self._first) + len(self._spare)

    @property
    def first(self) -> int:
        """Chains that wait and are not spare."""
        return len(self._first)

    @property
    def spare(self) -> int:
        """Chains that wait and are spare."""
        return len(self._spare)

    def add(self, start: Start, *, spare: bool = False) -> None:
        """Add a chain; one that is `spare` begins only while no other waits."""
        (self._spare if spare else self._first)[start.order] = start
        self._news.set()

    def take_back(self, start: Start) -> bool:
        """Take out a chain that has not begun; False where it has."""
        return any(waiting.pop(start.order, None) is not None for waiting in (self._first, self._spare))

    def take_all(self) -> list[Start]:
        """Take out all chains that wait."""
        waiting = [*self._first.values(), *self._spare.values()]
        self._first.clear()
        self._spare.clear()
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
        _, start = (self._first or self._spare).popitem(last=False)
        self.taken(start)
        return start

    def ended(self, start: Start, thought_tokens: int) -> None:
        """Whoever sent it sees it in the row."""


def _ignore(start: Start) -> None:
    return None


async def _kept() -> bool:
    return True
