"""The chains of a run for the code that called it: kept in memory, read one by one while the run goes on, or counted by a bar."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.from_thread import start_blocking_portal
from rich.columns import Columns
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from pipeline.run.loop import loop_options
from pipeline.run.prepare import Prepared
from pipeline.run.run import SessionResult
from pipeline.runtime.executor import Executor
from pipeline.runtime.rows import NoRows
from pipeline.store.rows import CallRow, ChainRow, StepRow


@asynccontextmanager
async def in_thread(main: Callable[[], Coroutine[Any, Any, SessionResult]], *, virtual: bool) -> AsyncIterator[Awaitable[SessionResult]]:
    """Let `main` run in a thread with its own event loop, on virtual or real time, cancelled at the end; gives what waits for its result.
    No cancel scope is open meanwhile: a generator may yield here."""
    loop = start_blocking_portal("asyncio", loop_options(virtual), name="pipeline run")
    future = loop.__enter__().start_task_soon(main)
    ended = asyncio.wrap_future(future)

    def stop() -> None:
        future.cancel()
        loop.__exit__(None, None, None)

    try:
        yield ended
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(stop)
            await asyncio.gather(ended, return_exceptions=True)


class ChainStream(NoRows):
    """A `RowSink` that passes chains on to one reader in the event loop `loop` of another thread. While `most` are unread none starts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: float) -> None:
        self._loop, self._most = loop, most
        self._rows, self._read = asyncio.Queue[ChainRow | None](), asyncio.Event()
        self._sent = self._taken = 0

    def chain(self, row: ChainRow) -> None:
        self._sent += 1
        self._loop.call_soon_threadsafe(self._rows.put_nowait, row)

    def finish(self) -> None:
        """No more chains will come."""
        self._loop.call_soon_threadsafe(self._rows.put_nowait, None)

    async def room(self) -> None:
        """Wait until fewer than `most` chains are unread."""
        if self._sent - self._taken >= self._most:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._caught_up(), self._loop))

    async def _caught_up(self) -> None:
        """The same, in the loop of the reader."""
        while self._sent - self._taken >= self._most:
            self._read.clear()
            await self._read.wait()

    async def next(self) -> ChainRow | None:
        """Wait for the next chain; None when no more will come."""
        await anyio.lowlevel.checkpoint()  # a reader that is never kept waiting can be cancelled, and lets others run
        row = await self._rows.get()
        self._taken += 1
        self._read.set()
        return row


class MemoryRows(NoRows):
    """A `RowSink` that keeps rows in memory: chains, and with `trace` steps and calls too."""

    def __init__(self, *, trace: bool) -> None:
        self._trace = trace
        self.chains: list[ChainRow] = []
        self.steps: list[StepRow] = []
        self.calls: list[CallRow] = []

    def call(self, row: CallRow) -> None:
        if self._trace:
            self.calls.append(row)

    def step(self, row: StepRow) -> None:
        if self._trace:
            self.steps.append(row)

    def chain(self, row: ChainRow) -> None:
        self.chains.append(row)


@contextmanager
def progress_shown(run: Prepared, work: Executor) -> Iterator[None]:
    """Draw the progress of a run until the block ends; the run never waits for it."""
    chains, progress = run.record.input.chains, work.progress

    def bar() -> Columns:
        failed = f", {progress.failed:,} failed" if progress.failed else ""
        said = f"{progress.over:,}/{chains:,}, {sum(progress.output_tokens.values()):,} tokens{failed}"
        return Columns([run.plan.name, ProgressBar(chains, progress.over, width=40), Text(said)])

    with Live(get_renderable=bar):
        yield
