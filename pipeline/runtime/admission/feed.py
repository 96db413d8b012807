"""Feeds of an executor: problems of an input in their order, or chains that are handed out during the run."""

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

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
