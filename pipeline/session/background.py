"""A run in the background of the calling code: in a thread with an event loop of its own, or as a task of the running event loop."""

from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Protocol

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal

from pipeline.session.execute import SessionResult
from pipeline.session.loop import in_loop, spawn
from pipeline.session.stop import Stop

Main = Callable[[Stop], Coroutine[Any, Any, SessionResult]]
"""A coroutine function that carries out the run; its argument can end it early."""


class Background(Protocol):
    """A run in the background, which goes on while the caller does something else."""

    async def ended(self) -> SessionResult:
        """Wait for the end of the run; its result, or raises what it raised."""

    async def aclose(self) -> None:
        """End the run if it still goes on, and wait until it has ended. Errors of the run are not raised."""


class ThreadRun:
    """A run in a thread and an event loop of its own: for engines that the run opens and closes itself."""

    def __init__(self, main: Main, *, virtual: bool) -> None:
        self._main, self._stop = main, Stop()
        self._portal: Future[BlockingPortal] = Future()
        self._threads = ThreadPoolExecutor(2, "pipeline run")  # one for the run, one for `close`, which waits for the run's event loop
        self._result = self._threads.submit(in_loop, self._work, virtual=virtual)

    def result(self) -> SessionResult:
        """Wait for the end of the run in the calling thread; its result, or raises what it raised."""
        return self._result.result()

    def close(self) -> None:
        """See `Background.aclose`."""
        self._threads.submit(self._abort)
        self._threads.shutdown()

    async def _work(self) -> SessionResult:
        async with BlockingPortal() as portal:
            self._portal.set_result(portal)
            result = await self._main(self._stop)
        return result

    def _abort(self) -> None:
        if not self._result.done():
            with suppress(RuntimeError):  # it ended meanwhile
                self._portal.result().call(self._stop.abort)

    async def ended(self) -> SessionResult:
        """See `Background.ended`."""
        return await anyio.to_thread.run_sync(self.result, abandon_on_cancel=True)

    async def aclose(self) -> None:
        """See `Background.aclose`."""
        await anyio.to_thread.run_sync(self.close)


class TaskRun:
    """A run as a task of the running event loop: for engines that live there."""

    def __init__(self, main: Main) -> None:
        self._main, self._stop, self._done = main, Stop(), anyio.Event()
        self._result: SessionResult | None = None
        self._error: BaseException | None = None
        spawn(self._work)

    async def ended(self) -> SessionResult:
        """See `Background.ended`."""
        await self._done.wait()
        if self._result is None:
            raise self._error or RuntimeError("the event loop ended before the run")
        return self._result

    async def aclose(self) -> None:
        """See `Background.aclose`."""
        self._stop.abort()
        await self._done.wait()

    async def _work(self) -> None:
        try:
            self._result = await self._main(self._stop)
        except Exception as error:
            self._error = error  # raised where the run is waited for
        finally:
            self._done.set()
