"""One request on its way: through its lane, to its engine, into the journal. Waits at the edges of what the lane decides."""

import anyio
from msgspec import structs

from pipeline.engines.base import Completion, Engine, Request
from pipeline.errors import ChainError, PipelineError
from pipeline.runtime.journal import Clock, Journal, StageLabel
from pipeline.runtime.lane import Call, Lane


class CallTimeout(ChainError):
    """An engine did not answer a call within `timeout_s`."""

    def __init__(self, role: str, timeout_s: float) -> None:
        super().__init__(f"engine {role!r} did not answer within timeout_s={timeout_s:g}")
        self.role, self.timeout_s = role, timeout_s


class CallCancelled(ChainError):
    """The run, or another call of the same chain, ended before the answer came."""


class Caller:
    """On whose behalf a call is made: a chain's journal, and the scope that a timeout cancels."""

    __slots__ = ("journal", "scope", "timeout")

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.scope = anyio.CancelScope()
        self.timeout: CallTimeout | None = None


class Dispatcher:
    """The lane of one engine, carried out.

    Calls of a lane have one timeout, so that the oldest in flight is the first to reach it: one watcher for all of
    them costs a call almost nothing, a timer for each costs it more than all the rest.
    """

    def __init__(self, engine: Engine, max_in_flight: int, timeout_s: float, clock: Clock) -> None:
        self.lane = Lane(engine.role, max_in_flight)
        self._engine, self._timeout_s, self._clock = engine, timeout_s, clock
        self._in_flight: dict[Call, tuple[float, Caller]] = {}

    async def call(self, caller: Caller, label: StageLabel, order: int, step_index: int, request: Request, ready: float) -> Completion:
        """Answer `request`, which could have started at `ready`; raises what the engine raises."""
        call, journal = Call(label.name, order, request), caller.journal
        completion: Completion | None = None
        try:
            submit = await self._wait(call, journal, ready)
            self._in_flight[call] = (submit + self._timeout_s, caller)
            journal.active.begin(submit)
            try:
                completion = await self._engine.generate(structs.replace(request, priority=self.lane.priority(call)))
            except PipelineError as error:
                journal.call(label, call, step_index, None, error, ready, submit)
                raise
            except anyio.get_cancelled_exc_class():
                gave_up = None if call in self._in_flight else caller.timeout
                journal.call(label, call, step_index, None, gave_up or CallCancelled("cancelled before the answer came"), ready, submit)
                raise
            finally:
                self._in_flight.pop(call, None)
                journal.active.end(self._clock.now())
            journal.call(label, call, step_index, completion, None, ready, submit)
            return completion
        finally:
            self.lane.leave(call, completion.usage.output_tokens // max(1, request.n) if completion else None)
            self._start()

    async def watch(self) -> None:
        """Give up calls that take too long, until cancelled."""
        while True:
            now = self._clock.now()
            deadline, _ = next(iter(self._in_flight.values()), (now + self._timeout_s, None))
            if deadline > now:
                await anyio.sleep(deadline - now)
            self._expire(self._clock.now())

    def _expire(self, now: float) -> None:
        for call, (deadline, caller) in list(self._in_flight.items()):
            if deadline > now:
                return
            del self._in_flight[call]
            caller.timeout = CallTimeout(self.lane.role, self._timeout_s)
            caller.scope.cancel()

    async def _wait(self, call: Call, journal: Journal, ready: float) -> float:
        """Until the lane lets `call` start; the time at which it does."""
        journal.waiting.begin(ready)
        self.lane.put(call)
        self._start()
        try:
            if not call.started:
                call.gate = anyio.Event()
                await call.gate.wait()
        finally:
            now = self._clock.now()
            journal.waiting.end(now)
        return now

    def _start(self) -> None:
        """Let every call go that may."""
        while (call := self.lane.take()) is not None:
            if call.gate is not None:
                call.gate.set()
