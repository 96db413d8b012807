"""The event loop of a run: asyncio, on real time where engines are real, on virtual time where they are simulated; and how it is stopped.

No signal handler is set here; the command line does that (`pipeline.cli.live`).
"""

import gc
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio

from pipeline.errors import Interrupted
from pipeline.runtime.virtual_loop import VirtualLoop
from pipeline.tasks import unwrapped

T = TypeVar("T")
Attend = Callable[..., Coroutine[Any, Any, Any]]
"""`attend(stop, task_status=...)`: a task alongside a run that may stop it; it is cancelled when the run is over."""
GC_THRESHOLDS = (200_000, 20, 100)
"""Thresholds for `gc.set_threshold` during a run: new objects before a collection, and collections before one of the older objects."""


def loop_options(virtual: bool) -> dict[str, Any]:
    """What anyio makes a new event loop with, on virtual or real time."""
    return {"loop_factory": VirtualLoop} if virtual else {}


def in_loop(main: Callable[[], Awaitable[T]], *, virtual: bool) -> T:
    """Run `main` to its end in a new event loop, on virtual or real time; its result."""
    return anyio.run(main, backend="asyncio", backend_options=loop_options(virtual))


@contextmanager
def rare_collection() -> Iterator[None]:
    """Let garbage collections be rare, and skip the objects that are there already, until the end. Affects the whole process.

    Imported modules and live chains are millions of objects, almost none of them garbage; scanning them again and again was
    half of the cost of a call (bench/cost/workloads.py).
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class Stop:
    """Stops one run; to be used only in the run's own event loop.

    A run that drains starts no more chains and lets live chains finish. A run that aborts is cancelled at once; what it has
    recorded is kept. Either way its result says that it was interrupted.
    """

    def __init__(self) -> None:
        self.aborted = False
        """True if `abort` was called."""
        self._drain: Callable[[], None] | None = None
        self._scope: anyio.CancelScope | None = None
        self._over = False

    def drain(self) -> bool:
        """Let the run start no more chains; False where it starts none now, so that there is nothing to wait for."""
        if self._drain is None:
            return False
        self._drain()
        return True

    def abort(self) -> None:
        """Cancel the body of the innermost `guard`, and of every `guard` that is entered later; nothing where the run is over."""
        self.aborted = True
        if self._scope is not None and not self._over:
            self._scope.cancel()

    def over(self) -> None:
        """The run has ended: its result is not lost by an `abort` while its engines close."""
        self._over = True

    @contextmanager
    def draining(self, drain: Callable[[], None]) -> Iterator[None]:
        """A context in which chains are started, which `drain` ends."""
        self._drain = drain
        try:
            yield
        finally:
            self._drain = None

    @contextmanager
    def guard(self) -> Iterator[None]:
        """A context whose body `abort` cancels; the code after it continues."""
        outer = self._scope
        with anyio.CancelScope() as self._scope:
            if self.aborted:
                self._scope.cancel()
            try:
                yield
            finally:
                self._scope = outer


async def attended(main: Callable[[Stop], Awaitable[T]], attend: Attend | None, stop: Stop | None = None) -> T:
    """The result of `main`, which `stop` may end; `attend` runs alongside it. Raises `Interrupted` where `main` was ended without one."""
    result, stop = None, stop or Stop()
    with unwrapped():
        async with anyio.create_task_group() as tasks:
            if attend is not None:
                await tasks.start(attend, stop)
            with stop.guard():
                result = await main(stop)
            tasks.cancel_scope.cancel()
    if result is None:
        raise Interrupted
    return result
