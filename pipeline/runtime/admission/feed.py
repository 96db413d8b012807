"""Feeds of an executor: problems of an input in their order, or chains that come during the run, from clients."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

import anyio
import anyio.to_thread

from pipeline.data.problems import Problem
from pipeline.errors import BadRow, Withdrawn

READ_AHEAD = 256
"""The number of problems that are read from the input at a time."""
Item = Problem | BadRow


class Withdrawal:
    """Ends a chain before its time: whoever asked for it calls `withdraw`, the chain runs in the context of the object."""

    def __init__(self) -> None:
        self._scope, self._why = anyio.CancelScope(), ""

    def withdraw(self, why: str) -> None:
        """End the chain, or let it end as soon as it begins."""
        self._why = why
        self._scope.cancel()

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        ended = self._scope.__exit__(*error)
        if self._scope.cancelled_caught:
            raise Withdrawn(self._why)
        return ended


class Start(NamedTuple):
    """A chain that is to begin."""

    item: Item
    sample_index: int
    order: int
    """Its `place` in the input."""
    withdrawal: Withdrawal | None = None
    """What may end it early; None: nothing but the end of the run."""
    record: Mapping[str, Any] | None = None
    """The whole row of its problem, where that is a request and in no file."""


class SampleCounts(NamedTuple):
    """How many chains a problem has."""

    each: int
    """Of a problem that does not say it."""
    most: int
    """Of any problem."""

    def of(self, item: Item) -> int:
        """The number of chains of `item`."""
        own = item.settings.samples if isinstance(item, Problem) else None
        return self.each if own is None else own

    def place(self, item: Item, sample_index: int) -> int:
        """The place of a chain in the input: rows first, samples of a row next, with room for those of every row."""
        return (item.row - 1) * self.most + sample_index


class Feed(Protocol):
    """Gives the chains of a run one after the other."""

    async def next(self) -> Start | None:
        """Wait for the chain that begins next; None when no more will come."""


class InputFeed:
    """The `Feed` of an input: each problem with all of its samples, one problem after the other."""

    def __init__(self, problems: Iterator[Item], samples: SampleCounts, is_over: Callable[[int], bool], *, threads: bool) -> None:
        """`is_over`: whether the chain at a place of the input was finished in an earlier session. `threads`: read in a thread; on
        virtual time, which must not wait for one, at once."""
        self._problems, self._samples, self._is_over, self._threads = problems, samples, is_over, threads
        self._starts: Iterator[Start] = iter(())

    async def next(self) -> Start | None:
        while (start := next(self._starts, None)) is None:
            items = await self._read()
            if not items:
                return None
            self._starts = self._of(items)
        return start

    async def _read(self) -> list[Item]:
        """The next problems, an empty list at the end."""
        if not self._threads:
            return list(islice(self._problems, READ_AHEAD))
        return await anyio.to_thread.run_sync(lambda: list(islice(self._problems, READ_AHEAD)))

    def _of(self, items: Sequence[Item]) -> Iterator[Start]:
        for item in items:
            for sample_index in range(self._samples.of(item)):
                place = self._samples.place(item, sample_index)
                if not self._is_over(place):
                    yield Start(item, sample_index, place)


class Arrivals:
    """The `Feed` of chains that come while the run goes on, in the order in which they came."""

    def __init__(self) -> None:
        # By the place of each chain in the run, so that one of thousands can be taken out.
        self._waiting = OrderedDict[int, Start]()
        self._news = anyio.Event()
        self._closed = False

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
        while not self and not self._closed:
            self._news = anyio.Event()
            await self._news.wait()
        if not self:
            return None
        _, start = self._waiting.popitem(last=False)
        return start
