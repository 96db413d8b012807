"""A queue of trace rows before the store: chains add rows in microseconds, one background task writes them, another makes parts of them.

In real time the task hands batches to a thread, one at a time, so that the slower the disk is the more rows share a sync; in
virtual time, where the clock would jump while a thread works, it writes inline. A row is on disk within two seconds of being
added. Adding it never waits; only `room`, before a new chain, may.
"""

import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio import CancelScope, Event, to_thread
from msgspec import Struct

from pipeline.errors import RunFolderError
from pipeline.store.rows import TABLES, CallRow, ChainRow, ProblemRow, StepRow
from pipeline.store.store import KEPT, RunStore

WRITE_EVERY_S = 1.0
"""Most seconds that a row waits before writing begins, by the real clock; on virtual time this holds while rows come."""
WRITE_ROWS = 1024
"""When this many rows wait they are written at once, before `WRITE_EVERY_S` has passed."""
MOST_ROWS = 8192
"""`room` waits while at least this many rows are unwritten."""
ORDER = (KEPT, *TABLES)
"""The tables in the order in which they are written: the rows of one rest on those of the tables before it."""


class Recorder:
    """Collects the rows of a run and writes them to a store. Made by `open_recorder`; not for use from several threads."""

    def __init__(self, store: RunStore, virtual: bool) -> None:
        self._store, self._virtual = store, virtual
        self._rows = {table: list[Struct]() for table in ORDER}
        self._unwritten = self._being_written = 0
        self.error: RunFolderError | None = None
        """The first write that failed."""
        self._due = 0.0  # when the oldest waiting row is to be written, by the real clock
        self._any_waiting, self._enough_waiting, self._drained = Event(), Event(), Event()
        self._writing = anyio.Lock()

    @property
    def waiting(self) -> int:
        """Rows not yet written, those being written included."""
        return self._unwritten + self._being_written

    def problem(self, row: ProblemRow) -> None:
        """Record one problem that came while the run went on; the store must have the table."""
        self._add("problems", row)

    def call(self, row: CallRow) -> None:
        """Record one engine request."""
        self._add("calls", row)

    def step(self, row: StepRow) -> None:
        """Record one committed step."""
        self._add("steps", row)

    def chain(self, row: ChainRow) -> None:
        """Record one finished chain, after its calls and steps."""
        self._add("chains", row)

    async def room(self) -> None:
        """Wait until fewer than `MOST_ROWS` rows are unwritten; raise `RunFolderError` once writing has failed."""
        while self.waiting >= MOST_ROWS and not self.error:
            await self._drained.wait()
        if self.error:
            raise self.error

    async def write(self) -> None:
        """Write rows as they come, until cancelled; raise `RunFolderError` when the folder cannot be written."""
        while True:
            await self._any_waiting.wait()
            with anyio.move_on_after(math.inf if self._virtual else max(0.0, self._due - time.monotonic())):
                await self._enough_waiting.wait()
            with CancelScope(shield=True):  # rows taken from the queue are written before the task may end
                await self._drain()

    async def make_parts(self) -> None:
        """Make parts of what was written, beside further writing, until cancelled; raise `RunFolderError` as `write` does."""
        while True:
            await self._drained.wait()
            await self._call_store(self._store.make_parts)

    async def aclose(self) -> None:
        """Write the remaining rows and close the store, also while being cancelled; a second call does nothing.

        Raises `RunFolderError`.
        """
        with CancelScope(shield=True):
            try:
                await self._drain()
            finally:
                await self._call_store(self._store.close)

    def _add(self, table: str, row: Struct) -> None:
        self._rows[table].append(row)
        self._unwritten += 1
        if self._unwritten == 1:
            self._any_waiting.set()
            self._due = time.monotonic() + WRITE_EVERY_S
        elif self._unwritten == WRITE_ROWS or (self._virtual and time.monotonic() >= self._due):
            self._enough_waiting.set()

    async def _drain(self) -> None:
        """Hand all waiting rows to the store."""
        async with self._writing:
            rows, self._rows = self._rows, {table: list[Struct]() for table in ORDER}
            self._being_written, self._unwritten = self._unwritten, 0
            self._any_waiting, self._enough_waiting = Event(), Event()
            try:
                await self._call_store(self._append, rows)
            finally:
                self._being_written = 0
                self._drained.set()
                self._drained = Event()

    def _append(self, rows: dict[str, list[Struct]]) -> None:
        """After a write that failed nothing more is written, so that no table gets ahead of the calls that its rows rest on."""
        for table, its_rows in rows.items():
            if its_rows and self.error is None:
                self._store.append(table, its_rows)

    async def _call_store(self, call: Callable[..., None], *args: object) -> None:
        try:
            if self._virtual:
                call(*args)
            else:
                await to_thread.run_sync(call, *args)
        except RunFolderError as error:
            self.error = self.error or error
            raise


@asynccontextmanager
async def open_recorder(store: RunStore, virtual: bool) -> AsyncIterator[Recorder]:
    """A recorder over `store`, which is closed at the end, however the body ends; `virtual`: the clock is simulated.

    A write that fails cancels the body and raises `RunFolderError` without a group; other errors are raised as the body raised them.
    """
    store.open()
    recorder = Recorder(store, virtual)
    error: BaseException | None = None
    try:
        async with anyio.create_task_group() as writer:
            writer.start_soon(recorder.write)
            writer.start_soon(recorder.make_parts)
            try:
                yield recorder
            finally:
                try:
                    await recorder.aclose()
                finally:
                    writer.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        error = recorder.error or (group.exceptions[0] if len(group.exceptions) == 1 else group)
    if error:
        raise error
