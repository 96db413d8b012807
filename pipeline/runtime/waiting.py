"""How a chain waits: at a gate until its call may start, and for an answer until a deadline.

anyio's `Event` and `CancelScope` do both, and cost more than the call's place in the queue does (bench/LOG.md). On asyncio, where
real engines run, a future and the task's own cancellation do the same for a third; on trio, where time is virtual, anyio's are used.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

import anyio
import sniffio
from anyio import CancelScope

T = TypeVar("T")


class Gate(Protocol):
    """Lets one task wait, by `await gate`, until another one opens it: what an `asyncio.Future` is, made by what `gate_maker` returns."""

    def __await__(self) -> Generator[Any, Any, object]:
        """Wait until it is open."""

    def done(self) -> bool:
        """Whether it is open, or the task that waited was cancelled; then it must not be opened."""

    def set_result(self, result: None, /) -> None:
        """Open it."""


class _EventGate:
    """A `Gate` on any event loop."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def __await__(self) -> Generator[Any, Any, object]:
        return self._event.wait().__await__()

    def done(self) -> bool:
        return self._event.is_set()

    def set_result(self, result: None, /) -> None:
        self._event.set()


def gate_maker() -> Callable[[], Gate]:
    """What makes gates in the running event loop."""
    return asyncio.get_running_loop().create_future if _on_asyncio() else _EventGate


class Expired(Exception):
    """The deadline passed before the answer came."""


class Deadlines(Protocol):
    """Awaits answers, each until its deadline. Deadlines must not come before those given earlier. Made by `new_deadlines`."""

    async def wait_for(self, answer: Awaitable[T], deadline: float) -> T:
        """The `answer`, which this task awaits; raises `Expired` once `expire` was called with a time not before `deadline`."""

    @property
    def next(self) -> float | None:
        """The deadline that comes first; None while no answer is awaited."""

    def postpone(self, seconds: float) -> None:
        """Let all deadlines be so much later."""

    def expire(self, now: float) -> None:
        """Give up the answers whose deadline is not after `now`."""


class _Cancellable(Protocol):
    def cancel(self) -> object: ...


K = TypeVar("K", bound=_Cancellable)


class _Deadlines(Generic[K]):
    """Deadlines by what is cancelled when they pass, in their order."""

    def __init__(self) -> None:
        self._awaited: dict[K, float] = {}

    @property
    def next(self) -> float | None:
        return next(iter(self._awaited.values()), None)

    def postpone(self, seconds: float) -> None:
        for key in self._awaited:
            self._awaited[key] += seconds

    def expire(self, now: float) -> None:
        for key, deadline in list(self._awaited.items()):
            if deadline > now:
                return
            del self._awaited[key]
            key.cancel()


class _TaskDeadlines(_Deadlines["asyncio.Task[Any]"]):
    """`Deadlines` on asyncio: a task is cancelled once, and takes that back, as `asyncio.timeout` does it."""

    async def wait_for(self, answer: Awaitable[T], deadline: float) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._awaited[task] = deadline
        before = task.cancelling()
        try:
            return await answer
        except asyncio.CancelledError as cancelled:
            if task not in self._awaited and task.uncancel() <= before:
                raise Expired from cancelled
            raise
        finally:
            self._awaited.pop(task, None)


class _ScopeDeadlines(_Deadlines[CancelScope]):
    """`Deadlines` on any event loop."""

    async def wait_for(self, answer: Awaitable[T], deadline: float) -> T:
        scope = CancelScope()
        self._awaited[scope] = deadline
        try:
            with scope:
                return await answer
        finally:
            self._awaited.pop(scope, None)
        raise Expired


def new_deadlines() -> Deadlines:
    """An empty `Deadlines` for the running event loop."""
    return _TaskDeadlines() if _on_asyncio() else _ScopeDeadlines()


def _on_asyncio() -> bool:
    return sniffio.current_async_library() == "asyncio"
