"""Between the chains of a run and their `Adaptive`: tells it what happens, carries out what it decides, wakes it when it asks for that.

Everything but `watch` is synchronous: an event comes in, the control decides, requests are interrupted at once.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
from msgspec import structs

from pipeline.engine import Completion, Request
from pipeline.graph.rules import BOUNDARY, RESPONSE
from pipeline.reasoning.chain import Chain, Outcome
from pipeline.runtime.admission.admission import AdmissionMember
from pipeline.runtime.chain_recorder import Attempt
from pipeline.runtime.clock import Clock
from pipeline.runtime.dispatch import Dispatcher
from pipeline.runtime.schedule import Schedule
from pipeline.runtime.speculation.adaptive import Adaptive
from pipeline.runtime.speculation.modes import Mode
from pipeline.stages.base import Stage


class ModeSwitch:
    """Switches the chains of one loop between speculation and the target alone, as its `control` decides."""

    def __init__(self, control: Adaptive, target: Dispatcher, role: str, clock: Clock, schedule: Schedule) -> None:
        """`target` sends the direct requests, to the engine `role`; `schedule` lets chains pause."""
        self.control = control
        self._target, self._role, self._clock, self._schedule = target, role, clock, schedule
        self._max_running: int | None = None
        self._inside: dict[int, AdmissionMember | None] = {}
        """The chains that have begun and have not left their loop, and what their schedule knows them as."""
        self._unsent: dict[int, bool] = {}
        """The chains that are to write directly and have not asked yet, and whether each still is to."""
        self._sleep = anyio.CancelScope()

    async def watch(self) -> None:
        """Ask for interruptions when the control wants to be asked though nothing happens; runs until it is cancelled."""
        while True:
            with anyio.CancelScope(deadline=self.control.wake()) as self._sleep:
                await anyio.sleep_forever()
            self._carry_out(self._clock.now())

    def enter(self, order: int, member: AdmissionMember | None) -> None:
        """A chain begins, which is in its loop from its first call on; `member` is what its schedule knows it as."""
        now = self._clock.now()
        self._inside[order] = member
        if member is not None:
            member.interrupt, member.on_pause = partial(self._target.interrupt, order), partial(self._on_pause, order)
        self.control.enter(order, now)
        self._carry_out(now)

    def leave(self, order: int) -> None:
        """A chain has left its loop, or ended otherwise; does nothing where it had left before."""
        if order in self._inside:
            now = self._clock.now()
            del self._inside[order]
            self.control.leave(order, now)
            self._carry_out(now)

    def mode(self, chain: Chain) -> Mode:
        """The mode of the next step of `chain`."""
        now = self._clock.now()
        mode = self.control.mode(chain.order, len(chain.contexts[self._role]), now)
        if mode == "direct":
            self._unsent[chain.order] = True
        self._carry_out(now)
        return mode

    def send(self, chain: Chain) -> bool:
        """The direct request of `chain` is about to be sent. Returns True if it still is to be."""
        return self._unsent.pop(chain.order, True)

    def wrote(self, chain: Chain, mode: Mode, tokens: int, accepted: bool) -> None:
        """`chain` committed `tokens` of its thought, see `Adaptive.wrote`."""
        now = self._clock.now()
        if (member := self._inside.get(chain.order)) is not None:
            member.wrote_directly = mode == "direct"
        self.control.wrote(chain.order, mode, tokens, accepted, now)
        self._carry_out(now)

    def called(self, attempt: Attempt, completion: Completion, end: float) -> None:
        """A call of a chain that has entered its loop was answered at `end`."""
        self.control.called(
            purpose=attempt.label.purpose,
            direct=attempt.label.name in (RESPONSE, BOUNDARY),
            n=attempt.call.request.n,
            output_tokens=completion.usage.output_tokens,
            submit=attempt.submit,
            end=end,
        )
        self._carry_out(end)

    def _carry_out(self, now: float) -> None:
        for order in self.control.interrupts(now):
            if order in self._unsent:
                self._unsent[order] = False
            else:
                self._target.interrupt(order)
        if self._sleep.deadline != self.control.wake():
            self._sleep.deadline = self.control.wake()
        if self.control.max_running != self._max_running:
            self._max_running = self.control.max_running
            self._schedule.limit(self._max_running)

    def _on_pause(self, order: int, pauses: bool) -> None:
        """A chain begins to pause, or continues."""
        if order in self._inside:
            now = self._clock.now()
            (self.control.pause if pauses else self.control.resume)(order, now)
            self._carry_out(now)


class SwitchedResponse:
    """A `Stage` around the response of a `switch`."""

    def __init__(self, stage: Stage, switch: ModeSwitch) -> None:
        self._stage, self._switch = stage, switch
        self.name: str = stage.name
        self.spec: Any = stage.spec
        self.role: str = stage.role
        self._key: str = getattr(stage, "context", stage.role)

    def requests(self, chain: Chain) -> list[Request]:
        """None where the chain is to speculate by now."""
        if not self._switch.send(chain):
            return []
        [request] = self._stage.requests(chain)
        room = chain.room(request.max_tokens, self._key)  # what a whole response may have, less the steps before it
        return [structs.replace(request, max_tokens=room, interruptible=True)]

    def apply(self, chain: Chain, completions: Sequence[Completion]) -> Outcome:
        """Without an answer nothing was asked."""
        return self._stage.apply(chain, completions) if completions else Outcome()

    def check(self, candidates: int) -> str | None:
        return self._stage.check(candidates)
