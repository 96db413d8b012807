"""A bounded queue of finished chains between a run and its reader, which may be in different threads and event loops.

The run adds rows and waits, before a new chain, while too many of them are unread; the reader waits for the next row.
"""

import math
from collections import deque
from threading import Condition

import anyio
import anyio.lowlevel
import anyio.to_thread

from pipeline.store.events import CallRow, ChainRow, StepRow


class ChainStream:
    """A `pipeline.runtime.rows.RowSink` that passes chains on to one reader. While `most` chains are unread no new chain starts.

    `inline`: the run's event loop is on a virtual clock in a separate thread, and that thread itself waits, so that the clock
    stops; otherwise another thread waits, so that the event loop keeps running.
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
        """Add one finished chain for the reader."""
        with self._changed:
            if not self._closed:
                self._rows.append(row)
            self._changed.notify_all()

    async def room(self) -> None:
        """Wait until fewer than `most` chains are unread; for ever once nobody reads any more, because the run is to be stopped then."""
        if len(self._rows) >= self._most and not self._closed:
            if self._inline:
                self._wait_for_room()
            else:
                await anyio.to_thread.run_sync(self._wait_for_room, abandon_on_cancel=True)
        if self._closed:
            await anyio.sleep_forever()

    def finish(self) -> None:
        """No more chains will come."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody reads any more: unread chains are dropped and no further chain is started. The run must be stopped then."""
        with self._changed:
            self._closed = True
            self._rows.clear()
            self._changed.notify_all()

    async def next(self) -> ChainRow | None:
        """Wait for the next chain; None when no more will come."""
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
