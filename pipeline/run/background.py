"""A run in the background of the calling code, in a thread with its own event loop or as a task of the running one; its progress bar."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Condition, Thread
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pipeline.run.loop import Stop, in_loop, spawn
from pipeline.run.observer import View
from pipeline.run.run import SessionResult
from pipeline.store.events import CallRow, ChainRow, StepRow

Main = Callable[[Stop], Coroutine[Any, Any, SessionResult]]
"""A coroutine function that carries out the run; its argument can end it early."""


class ThreadRun:
    """A run in its own thread and event loop: for engines that the run opens and closes itself. It does not outlive the process."""

    def __init__(self, main: Main, *, virtual: bool) -> None:
        self._main, self._stop = main, Stop()
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._ended: Future[SessionResult] = Future()
        self._thread = Thread(target=self._carry_out, args=(virtual,), name="pipeline run", daemon=True)
        self._thread.start()

    def result(self) -> SessionResult:
        """Wait for the end of the run in the calling thread; its result, or raises what it raised."""
        return self._ended.result()

    def stop(self) -> None:
        """Let the run end at once, without waiting for its end: also code that may no longer wait can call this."""
        self._loop.add_done_callback(self._abort)  # at once, or in the run's thread as soon as it has a loop

    def close(self) -> None:
        """Stop the run and wait in the calling thread until it has ended."""
        self.stop()
        self._thread.join()

    def _carry_out(self, virtual: bool) -> None:
        try:
            self._ended.set_result(in_loop(self._work, virtual=virtual))
        except BaseException as error:
            self._ended.set_exception(error)  # raised where the run is waited for

    async def _work(self) -> SessionResult:
        self._loop.set_result(asyncio.get_running_loop())
        return await self._main(self._stop)

    def _abort(self, loop: Future[asyncio.AbstractEventLoop]) -> None:
        with suppress(RuntimeError):  # it ended meanwhile
            loop.result().call_soon_threadsafe(self._stop.abort)

    async def ended(self) -> SessionResult:
        """Wait for the end of the run; its result, or raises what it raised."""
        return await anyio.to_thread.run_sync(self.result, abandon_on_cancel=True)

    async def aclose(self) -> None:
        """Stop the run and wait until it has ended. Errors of the run are not raised."""
        self.stop()
        try:
            await asyncio.to_thread(self._thread.join)
        finally:
            self._thread.join()  # a loop that is being closed lets nothing wait, whatever shields it


class TaskRun:
    """A run as a task of the running event loop, with the methods of `ThreadRun`: for engines that live there."""

    def __init__(self, main: Main) -> None:
        self._main, self._stop, self._done = main, Stop(), anyio.Event()
        self._result: SessionResult | None = None
        self._error: BaseException | None = None
        spawn(self._work)

    async def ended(self) -> SessionResult:
        await self._done.wait()
        if self._result is None:
            raise self._error or RuntimeError("the event loop ended before the run")
        return self._result

    def stop(self) -> None:
        self._stop.abort()

    async def aclose(self) -> None:
        self.stop()
        await self._done.wait()

    async def _work(self) -> None:
        try:
            self._result = await self._main(self._stop)
        except Exception as error:
            self._error = error  # raised where the run is waited for
        finally:
            self._done.set()


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


class MemoryRows:
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

    async def room(self) -> None:
        return


class _Bar(Progress):
    """A bar that looks at the run whenever it is drawn; the run never waits for it."""

    def __init__(self, view: View) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[said]}"))
        super().__init__(*columns, TimeRemainingColumn())
        self._view, self._run = view, self.add_task(view.plan.name, total=view.chains, said="")

    def get_renderables(self) -> Iterable[RenderableType]:
        if self.tasks:
            progress, totals = self._view.progress, self._view.totals()
            parts = [f"{sum(progress.output_tokens.values()):,} tokens", f"{progress.failed:,} failed" if progress.failed else ""]
            parts += [f"{totals.correct:,} of {totals.graded:,} right"] if totals.graded and not self._view.simulated else []
            self.update(self._run, completed=progress.done + progress.failed, said=", ".join(filter(None, parts)))
        return super().get_renderables()


@contextmanager
def progress_shown(view: View) -> Iterator[None]:
    """Draw the progress of `view` until the block ends."""
    with _Bar(view):
        yield
