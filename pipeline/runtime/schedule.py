"""Decides when chains begin and when they continue: the pipelined and the lockstep schedule over the same executor. The sequential one, as
in SpecReason's published code, is the pipelined one with one chain at a time.

A chain `enter`s before its first call, waits in `before_level` before each level of its plan, and `leave`s at its end. If there is an
`Admission`, only the chains that it allows continue. The decisions are synchronous (`_advance`); the coroutines only wait for them.
"""

from collections.abc import Mapping, Sequence

import anyio

from pipeline.runtime.admission.admission import Admission, AdmissionMember

Contexts = Mapping[str, Sequence[int]]
"""The token ids of a chain's prompt and thought, by role."""


class Schedule:
    """The pipelined schedule: `batch_size` chains are live at once and none waits for another, unless `admission` lets it pause."""

    def __init__(self, batch_size: int, admission: Admission | None = None) -> None:
        self.batch_size = batch_size
        """The maximum number of chains that are live at once."""
        self.live = 0
        """Chains that have entered and have not left."""
        self.admission = admission
        """What lets chains pause; None: nothing does."""
        self._paused: dict[AdmissionMember, anyio.Event] = {}
        """By each chain that pauses."""
        self._entrance: anyio.Event | None = None
        """Set when the caller that waits in `enter` should check again; None while none waits."""

    async def enter(self) -> AdmissionMember | None:
        """Wait until one more chain may begin, which is live then, as the member that is returned; None without an admission. Only one
        caller may wait here at a time."""
        while not self._may_enter():
            self._entrance = anyio.Event()
            await self._entrance.wait()
        self.live += 1
        return None if self.admission is None else self.admission.enter()

    async def before_level(self, rank: int, member: AdmissionMember | None, contexts: Contexts) -> None:
        """Wait until stages of this rank may run, here only while the chain pauses; `rank` is the place of the first of them in the plan,
        `contexts` are those of the chain `member`."""
        if self.admission is None or member is None:
            return
        is_first = not member.starts
        continues = self.admission.before_level(member, contexts)
        if is_first:  # it may be shorter than was expected of it
            self._open_entrance()
        if not continues:
            await self._pause(member)

    def leave(self, member: AdmissionMember | None) -> None:
        """End the life of a chain that entered."""
        self.live -= 1
        if self.admission is not None and member is not None:
            for resumed in self.admission.leave(member):
                self._resume(resumed)
        self._open_entrance()

    def exhausted(self) -> None:
        """Expect no more chains."""

    async def _pause(self, member: AdmissionMember) -> None:
        gate = self._paused[member] = anyio.Event()
        await gate.wait()

    def _resume(self, member: AdmissionMember) -> None:
        """Let a chain continue that was to pause; one that has not reached its next level does not wait."""
        if gate := self._paused.pop(member, None):
            gate.set()

    def _may_enter(self) -> bool:
        return self.live < self.batch_size and (self.admission is None or self.admission.may_enter())

    def _open_entrance(self) -> None:
        if self._entrance is not None:
            self._entrance.set()
            self._entrance = None


class Lockstep(Schedule):
    """The `Schedule` that runs rounds over all live chains: all draft, then all verify, then all fall back; new chains enter only
    at the start of a round.

    It is the barrier of batched loops such as RSD's and search-and-learn's: a phase starts when every live chain waits. Chains that pause
    hold nobody up.

    What holds whenever no method runs: each live chain either runs in the phase, or waits for its phase, or pauses, so `live` is
    `_running` plus the other two; a phase begins only when `_running` is 0, and within a round the ranks of its phases grow. A chain
    that waits for a rank which the round has passed, as one that begins its next step does, waits for the next round.

    Example (`tests/runtime/test_schedule.py` runs it): batch size 2; a has one level, of rank 1; b has ranks 1, 2, 1; c has 0, 1. First a
    and b enter and wait for rank 1: nobody runs and the round is full, so phase 1 begins for both. Then a leaves and b waits for rank 2:
    phase 2 begins for b alone, for c may not enter within the round. Then b waits for rank 1, which is not ahead of 2: a new round starts,
    c enters and waits for rank 0. The round is full: phase 0 begins for c, while b keeps waiting. When c waits for rank 1 too, phase 1
    begins for both.
    """

    def __init__(self, batch_size: int, admission: Admission | None = None) -> None:
        super().__init__(batch_size, admission)
        self._waiting: dict[int, list[anyio.Event]] = {}
        """One event for each waiting chain, by the rank that it waits for."""
        self._running = 0
        """The number of live chains that neither wait nor pause."""
        self._phase = -1
        """Rank of the phase under way; -1 before the first one of a round."""
        self._round_starts, self._no_more = True, False

    async def enter(self) -> AdmissionMember | None:
        """Only where a round starts."""
        member = await super().enter()
        self._running += 1
        return member

    async def before_level(self, rank: int, member: AdmissionMember | None, contexts: Contexts) -> None:
        """Wait for the phase of this rank."""
        await super().before_level(rank, member, contexts)
        gate = anyio.Event()
        self._waiting.setdefault(rank, []).append(gate)
        self._running -= 1
        self._advance()
        try:
            await gate.wait()
        except BaseException:
            if not gate.is_set():  # cancelled while it waited: it runs, to its end, and `leave` counts on that
                self._waiting[rank].remove(gate)
                self._running += 1
            raise

    def leave(self, member: AdmissionMember | None) -> None:
        self._running -= 1
        super().leave(member)
        self._advance()

    def exhausted(self) -> None:
        """Rounds need not be full any more."""
        self._no_more = True
        self._advance()

    async def _pause(self, member: AdmissionMember) -> None:
        self._running -= 1
        self._advance()
        try:
            await super()._pause(member)
        except BaseException:
            if self._paused.pop(member, None):  # cancelled while it paused: see `before_level`
                self._running += 1
            raise

    def _resume(self, member: AdmissionMember) -> None:
        self._running += member in self._paused
        super()._resume(member)

    def _may_enter(self) -> bool:
        return self._round_starts and super()._may_enter()

    def _advance(self) -> None:
        """Let the next phase begin, once nobody runs and a starting round is full."""
        if self._running:
            return
        ahead = self._ranks_ahead()
        if not ahead and not self._round_starts:
            self._round_starts, self._phase = True, -1
        if self._may_enter() and not self._no_more:
            self._open_entrance()
            return
        if ahead := self._ranks_ahead():
            self._round_starts, self._phase = False, min(ahead)
            gates = self._waiting.pop(self._phase)
            self._running += len(gates)
            for gate in gates:
                gate.set()

    def _ranks_ahead(self) -> list[int]:
        """Ranks that chains wait for and that the round has not passed."""
        return [rank for rank, gates in self._waiting.items() if gates and rank > self._phase]
