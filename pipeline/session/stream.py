"""Finished chains on their way from a run to whoever reads them, in whatever thread and event loop either of them lives.

The run drops rows and is held back, before a new chain, while too many of them are unread; the reader waits for the next one.
"""

import math
from collections import deque
from threading import Condition

import anyio.lowlevel
import anyio.to_thread

from pipeline.trace.events import CallRow, ChainRow, StepRow


class ChainStream:
    """A `pipeline.runtime.rows.RowSink` that passes chains on. At most `most` are unread before new chains wait.

    `inline`: the run's event loop lives on a virtual clock in a thread of its own, which stands still while the run is held
    back; elsewhere a thread waits, so that the event loop goes on.
    """

    def __init__(self, most: float = math.inf, *, inline: bool = False) -> None:
        self._most, self._inline = most, inline
        self._rows: deque[ChainRow] = deque()
        self._changed = Condition()
        self._over = self._closed = False

    def call(self, row: CallRow) -> None:
        """Calls are not passed on."""

    def step(self, row: StepRow) -> None:
        """Steps are not passed on."""

    def chain(self, row: ChainRow) -> None:
        """Pass on one finished chain."""
        with self._changed:
            if not self._closed:
                self._rows.append(row)
            self._changed.notify_all()

    async def room(self) -> None:
        """Wait until fewer than `most` chains are unread."""
        if len(self._rows) < self._most or self._closed:
            return
        if self._inline:
            self._wait_for_room()
        else:
            await anyio.to_thread.run_sync(self._wait_for_room, abandon_on_cancel=True)

    def finish(self) -> None:
        """No more chains will come."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody reads any more: unread chains are dropped and nothing is held back."""
        with self._changed:
            self._closed = True
            self._rows.clear()
            self._changed.notify_all()

    async def next(self) -> ChainRow | None:
        """The next chain; None when there will be none."""
        await anyio.lowlevel.checkpoint()  # a reader that is never kept waiting can be cancelled, and lets others run
        with self._changed:
            if self._rows or self._over or self._closed:
                return self._take()
        return await anyio.to_thread.run_sync(self._wait_for_row, abandon_on_cancel=True)

    def _take(self) -> ChainRow | None:
        row = self._rows.popleft() if self._rows else None
        self._changed.notify_all()
        return row

    def _wait_for_row(self) -> ChainRow | None:
        with self._changed:
            self._changed.wait_for(lambda: self._rows or self._over or self._closed)
            return self._take()

    def _wait_for_room(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._rows) < self._most or self._closed)
