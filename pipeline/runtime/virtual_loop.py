"""The event loop of simulated runs: its time does not advance while anything can run, and jumps to the next timer when nothing can.

Threads and signals wake it as they do any asyncio loop. It does not wait for them while there is a timer to jump to; without one it
waits really.
"""

import asyncio
import heapq
import selectors
from collections.abc import Callable
from contextvars import Context, copy_context
from itertools import count
from typing import Any, TypeVarTuple, Unpack

Ts = TypeVarTuple("Ts")
_Timer = tuple[float, int, asyncio.TimerHandle, Callable[..., object], tuple[Any, ...], Context]
"""When it is due, its number among all timers, the handle that may cancel it, and what it calls with which arguments in which context."""
FEW_TIMERS = 128
"""As long as there are no more timers than this, cancelled ones are not looked for."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop on virtual time, which begins at 0 s. Timers of one moment are called in the order in which they were set."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[_Timer] = []
        self._numbers = count()
        self._most_timers = FEW_TIMERS
        super().__init__(_JumpingSelector(self._jump))

    def time(self) -> float:
        """The virtual time in seconds."""
        return self._now

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if when <= self._now:
            self.call_soon(_call, handle, callback, args, context=context)
            return handle
        if len(self._timers) >= self._most_timers:
            self._forget_cancelled()
        heapq.heappush(self._timers, (when, next(self._numbers), handle, callback, args, context))
        return handle

    def _jump(self) -> bool:
        """Move the time to the next timer, and let all timers of that moment be called; False where there is none."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            return False
        self._now = now = timers[0][0]
        while timers and timers[0][0] == now:
            _, _, handle, callback, args, context = heapq.heappop(timers)
            self.call_soon(_call, handle, callback, args, context=context)
        return True

    def _forget_cancelled(self) -> None:
        self._timers = [timer for timer in self._timers if not timer[2].cancelled()]
        heapq.heapify(self._timers)
        self._most_timers = max(FEW_TIMERS, 2 * len(self._timers))


def _call(handle: asyncio.TimerHandle, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
    if not handle.cancelled():
        callback(*args)


class _JumpingSelector(selectors.DefaultSelector):
    """The selector of an event loop that asks `jump` for something to do before it waits for a file."""

    def __init__(self, jump: Callable[[], bool]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """`timeout` is None where the loop has nothing to do, else 0."""
        return super().select(0 if timeout is None and self._jump() else timeout)
