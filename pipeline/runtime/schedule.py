"""Which chains live and whose turn it is: pipelined, lockstep and sequential over the same executor.

A chain `enter`s before its first call, asks for a `turn` before each level of its plan, and `leave`s at its end. The
decisions are synchronous (`_advance`); the coroutines only wait for them.
"""

from collections.abc import Callable
from typing import Literal

import anyio

ScheduleName = Literal["pipelined", "lockstep", "sequential"]


class Pipelined:
    """`batch_size` chains live at once and no barrier stands between them."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size, self.live = batch_size, 0
        self._door: anyio.Event | None = None

    async def enter(self) -> None:
        """Wait until one more chain may live. One caller at a time."""
        while not self._may_enter():
            self._door = anyio.Event()
            await self._door.wait()
        self.live += 1

    async def turn(self, rank: int) -> None:
        """Wait until stages of this rank may run; `rank` is the place of the first of them in the plan."""

    def leave(self) -> None:
        """A chain is over."""
        self.live -= 1
        self._open_door()

    def exhausted(self) -> None:
        """No more chains will enter."""

    def _may_enter(self) -> bool:
        return self.live < self.batch_size

    def _open_door(self) -> None:
        if self._door is not None:
            self._door.set()
            self._door = None


class Lockstep(Pipelined):
    """Rounds over all live chains: all draft, then all verify, then all fall back; new chains enter at a round's start.

    The barrier of batched loops such as RSD's and search-and-learn's: a phase starts when every live chain waits.
    """

    def __init__(self, batch_size: int) -> None:
        super().__init__(batch_size)
        self._waiting: dict[int, list[anyio.Event]] = {}
        self._running = 0
        self._phase = -1
        self._round_starts, self._no_more = True, False

    async def enter(self) -> None:
        await super().enter()
        self._running += 1

    async def turn(self, rank: int) -> None:
        gate = anyio.Event()
        self._waiting.setdefault(rank, []).append(gate)
        self._running -= 1
        self._advance()
        try:
            await gate.wait()
        except BaseException:
            if not gate.is_set():
                self._waiting[rank].remove(gate)
                self._running += 1
            raise

    def leave(self) -> None:
        self._running -= 1
        super().leave()
        self._advance()

    def exhausted(self) -> None:
        self._no_more = True
        self._advance()

    def _may_enter(self) -> bool:
        return self._round_starts and super()._may_enter()

    def _advance(self) -> None:
        """Let the next phase begin, once nobody runs and a starting round is full."""
        if self._running:
            return
        ahead = [rank for rank, gates in self._waiting.items() if gates and rank > self._phase]
        if not ahead and not self._round_starts:
            self._round_starts, self._phase = True, -1
            self._open_door()
        if self._round_starts and self.live < self.batch_size and not self._no_more:
            return
        ahead = [rank for rank, gates in self._waiting.items() if gates and rank > self._phase]
        if ahead:
            self._round_starts, self._phase = False, min(ahead)
            gates = self._waiting.pop(self._phase)
            self._running += len(gates)
            for gate in gates:
                gate.set()


def Sequential(batch_size: int) -> Pipelined:
    """One chain at a time, whatever the batch size: what SpecReason's published code does."""
    return Pipelined(1)


SCHEDULES: dict[str, Callable[[int], Pipelined]] = {"pipelined": Pipelined, "lockstep": Lockstep, "sequential": Sequential}
