"""How a chain waits: at a gate until its call may start, and for an answer until it comes or is given up.

One word for one thing: a chain enters, runs or pauses, and leaves; a call waits in the client queue until it starts, and again before its
next attempt; a gate is where one waits until another opens it. anyio's `Event` and `CancelScope` do the same for three times the cost.
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


class GivenUp(Exception):
    """An answer that is not waited for any longer; the text says for which reason."""


class Awaited:
    """The answers that are awaited, each since it was asked for. None must have been asked for before those given earlier."""

    def __init__(self) -> None:
        self._asked: dict[asyncio.Task[Any], float] = {}
        self._reasons: dict[asyncio.Task[Any], str] = {}
        """Why the wait was ended for answers whose tasks have not noticed yet."""

    @property
    def oldest(self) -> float | None:
        """When the first of them was asked for; None while no answer is awaited."""
        return next(iter(self._asked.values()), None)

    def postpone(self, seconds: float) -> None:
        """Count all of them as asked for so much later."""
        for task in self._asked:
            self._asked[task] += seconds

    def give_up(self, asked: float, reason: str) -> None:
        """Stop waiting for the answers that were asked for at `asked` or before, for this `reason`."""
        for task, when in list(self._asked.items()):
            if when > asked:
                return
            del self._asked[task]
            self._reasons[task] = reason
            task.cancel()

    async def wait_for(self, answer: Awaitable[T], now: float) -> T:
        """The `answer`, which this task asks for `now`; raises `GivenUp` once `give_up` was called with a time not before that.

        The task is cancelled once, and takes that back, as `asyncio.timeout` does it.
        """
        task = asyncio.current_task()
        assert task is not None
        self._asked[task] = now
        before = task.cancelling()
        try:
            return await answer
        except asyncio.CancelledError as cancelled:
            if task not in self._asked and task.uncancel() <= before:
                raise GivenUp(self._reasons[task]) from cancelled
            raise
        finally:
            self._asked.pop(task, None)
            self._reasons.pop(task, None)
