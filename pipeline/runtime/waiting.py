"""How a chain waits: at a gate until its call may start, and for an answer until a deadline.

anyio's `Event` and `CancelScope` do both, and cost more than the call's place in the queue does (bench/LOG.md). On asyncio, where
real engines run, a future and the task's own cancellation do the same for a third; on trio, where time is virtual, anyio's are used.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

import anyio
import sniffio
from anyio import CancelScope

T = TypeVar("T")
K = TypeVar("K")


class Gate(Protocol):
    """Lets one task wait until another one opens it. Made by what `gate_maker` returns."""

    def wait(self) -> Awaitable[object]:
        """Wait until it is open."""

    def set(self) -> None:
        """Open it; may be called once more than the waiting task is there for."""


class _FutureGate:
    """A `Gate` on asyncio."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wait(self) -> Awaitable[object]:
        return self._future

    def set(self) -> None:
        if not self._future.done():  # its task may have been cancelled
            self._future.set_result(None)


def gate_maker() -> Callable[[], Gate]:
    """What makes gates in the running event loop."""
    return _FutureGate if _on_asyncio() else anyio.Event


class Expired(Exception):
    """The deadline passed before the answer came."""


class Deadlines(Protocol):
    """Awaits answers, each until its deadline. Deadlines must not come before those given earlier. Made by `new_deadlines`."""

    async def wait_for(self, answer: Awaitable[T], deadline: float) -> T:
        """The `answer`, which this task awaits; raises `Expired` once `expire` was called with a time not before `deadline`."""

    @property
    def next(self) -> float | None:
        """The deadline that comes first; None while no answer is awaited."""

    def expire(self, now: float) -> None:
        """Give up the answers whose deadline is not after `now`."""


class _Deadlines(Generic[K]):
    """What is awaited, by what interrupts it; answers stand in the order of their deadlines."""

    def __init__(self) -> None:
        self._awaited: dict[K, float] = {}

    @property
    def next(self) -> float | None:
        return next(iter(self._awaited.values()), None)

    def expire(self, now: float) -> None:
        for key, deadline in list(self._awaited.items()):
            if deadline > now:
                return
            del self._awaited[key]
            self._interrupt(key)

    def _interrupt(self, key: K) -> None:
        raise NotImplementedError


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

    def _interrupt(self, key: "asyncio.Task[Any]") -> None:
        key.cancel()


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

    def _interrupt(self, key: CancelScope) -> None:
        key.cancel()


def new_deadlines() -> Deadlines:
    """An empty `Deadlines` for the running event loop."""
    return _TaskDeadlines() if _on_asyncio() else _ScopeDeadlines()


def _on_asyncio() -> bool:
    return sniffio.current_async_library() == "asyncio"
