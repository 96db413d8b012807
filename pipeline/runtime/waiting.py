"""How a chain waits: at a gate until its call may start, and for an answer until a deadline.

anyio's `Event` and `CancelScope` do both, and cost more than the call's place in the queue does (bench/LOG.md). A future of asyncio
and the task's own cancellation do the same for a third.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")

Gate: TypeAlias = "asyncio.Future[None]"
"""Lets one task wait, by `await gate`, until another one opens it by `set_result(None)`; it is also `done` where the task that waited was
cancelled."""


def new_gate() -> Gate:
    """A gate that is closed, for the running event loop."""
    return asyncio.get_running_loop().create_future()


class Expired(Exception):
    """The deadline passed before the answer came."""


class Deadlines:
    """Awaits answers, each until its deadline. Deadlines must not come before those given earlier."""

    def __init__(self) -> None:
        self._awaited: dict[asyncio.Task[Any], float] = {}

    @property
    def next(self) -> float | None:
        """The deadline that comes first; None while no answer is awaited."""
        return next(iter(self._awaited.values()), None)

    def postpone(self, seconds: float) -> None:
        """Let all deadlines be so much later."""
        for task in self._awaited:
            self._awaited[task] += seconds

    def expire(self, now: float) -> None:
        """Give up the answers whose deadline is not after `now`."""
        for task, deadline in list(self._awaited.items()):
            if deadline > now:
                return
            del self._awaited[task]
            task.cancel()

    async def wait_for(self, answer: Awaitable[T], deadline: float) -> T:
        """The `answer`, which this task awaits; raises `Expired` once `expire` was called with a time not before `deadline`.

        The task is cancelled once, and takes that back, as `asyncio.timeout` does it.
        """
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
