"""Feeds of an executor: problems of an input in their order, or chains that come during the run, from clients."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple, Protocol

import anyio
import anyio.to_thread

from pipeline.data.problems import Problem
from pipeline.errors import BadRow, Withdrawn

READ_AHEAD = 256
"""The number of chains that are read from the input at a time."""
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


class Feed(Protocol):
    """Gives the chains of a run one after the other."""

    async def next(self) -> Start | None:
        """Wait for the chain that begins next; None when no more will come."""


class InputFeed:
    """The `Feed` of an input: each problem with all of its samples, one problem after the other."""

    def __init__(self, problems: Iterable[Item], samples: int, places: int, is_over: Callable[[int], bool], *, threads: bool) -> None:
        """`samples`: how many chains a problem has that does not say it; `places`: how many any has at most. `is_over`: whether the chain
        at a place of the input was finished in an earlier session. `threads`: read in a thread; on virtual time, which must not wait for
        one, at once."""
        self._starts, self._threads = _starts(problems, samples, places, is_over), threads
        self._ready: Iterator[Start] = iter(())

    async def next(self) -> Start | None:
        if (start := next(self._ready, None)) is None:
            self._ready = iter(await anyio.to_thread.run_sync(self._read) if self._threads else self._read())
            start = next(self._ready, None)
        return start

    def _read(self) -> list[Start]:
        return list(islice(self._starts, READ_AHEAD))


def _starts(problems: Iterable[Item], samples: int, places: int, is_over: Callable[[int], bool]) -> Iterator[Start]:
    """The chains that are not over. Their places are rows first, samples of a row next, with room for those of every row."""
    for item in problems:
        own = item.settings.samples if isinstance(item, Problem) else None
        for sample_index in range(samples if own is None else own):
            place = (item.row - 1) * places + sample_index
            if not is_over(place):
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
