"""One request on its way: through its lane, to its engine, into the journal. Waits at the edges of what the lane decides."""

import hashlib
from itertools import count

import anyio
from msgspec import structs

from pipeline.engines.base import Completion, Engine, Request
from pipeline.errors import ChainError, EngineUnavailable, PipelineError
from pipeline.runtime.journal import Attempt, Clock, Journal, StageLabel
from pipeline.runtime.lane import Call, Lane

FIRST_BACKOFF_S = 0.5
"""Wait before the first repetition of a call; it doubles with every further one, up to the longest."""
LONGEST_BACKOFF_S = 30.0
LONGEST_OBEYED_S = 300.0
"""An engine that asks for a longer pause is asked again all the same: the call holds a place in flight."""


class CallTimeout(EngineUnavailable):
    """An engine did not answer a call within `timeout_s`."""

    def __init__(self, role: str, timeout_s: float) -> None:
        super().__init__(role, f"did not answer within timeout_s={timeout_s:g}")
        self.timeout_s = timeout_s


class CallCancelled(ChainError):
    """The run, or another call of the same chain, ended before the answer came."""


def backoff_s(request_id: str, attempt: int, retry_after_s: float | None = None) -> float:
    """Seconds to wait after `attempt` (from 0) failed: exponential, spread by the request's name between half and all of
    it, so that calls refused together do not come back together; not less than the engine asked for."""
    longest = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * float(2**attempt))
    luck = int.from_bytes(hashlib.blake2b(f"{request_id}\0{attempt}".encode(), digest_size=4).digest()) / (1 << 32)
    return max(longest * (1 + luck) / 2, min(retry_after_s or 0.0, LONGEST_OBEYED_S))


class Dispatcher:
    """The lane of one engine, carried out.

    Calls of a lane have one timeout, so that the oldest in flight is the first to reach it: one watcher for all of
    them costs a call almost nothing, a timer for each costs it more than all the rest.
    """

    def __init__(self, engine: Engine, max_in_flight: int, timeout_s: float, max_retries: int, clock: Clock) -> None:
        self.lane = Lane(engine.role, max_in_flight)
        self._engine, self._timeout_s, self._max_retries, self._clock = engine, timeout_s, max_retries, clock
        self._in_flight: dict[Call, tuple[float, anyio.CancelScope]] = {}

    async def call(self, journal: Journal, label: StageLabel, order: int, step_index: int, request: Request, ready: float) -> Completion:
        """Answer `request`, which could have started at `ready`; raises what the engine raises.

        What was answered before the run was taken up again is not asked a second time. A call that backs off keeps its
        place in flight, so that a busy engine is asked for less.
        """
        if (past := journal.recall(label, request)) is not None:
            return past.completion(self._engine.tokenizer)
        call = Call(label.name, order, request)
        completion: Completion | None = None
        try:
            submit = await self._wait(call, journal, ready)
            for number in count():
                attempt = Attempt(label=label, call=call, step_index=step_index, number=number, ready=ready, submit=submit)
                try:
                    completion = await self._attempt(journal, attempt)
                    return completion
                except EngineUnavailable as refusal:
                    if number >= self._max_retries:
                        raise
                    ready = self._clock.now()
                    submit = await self._back_off(journal, backoff_s(request.request_id, number, refusal.retry_after_s))
            raise AssertionError("unreachable")
        finally:
            self.lane.leave(call, completion.usage.output_tokens // max(1, request.n) if completion else None)
            self._start()

    async def watch(self) -> None:
        """Give up attempts that take too long, until cancelled."""
        while True:
            now = self._clock.now()
            deadline, _ = next(iter(self._in_flight.values()), (now + self._timeout_s, None))
            if deadline > now:
                await anyio.sleep(deadline - now)
            self._expire(self._clock.now())

    def _expire(self, now: float) -> None:
        for call, (deadline, scope) in list(self._in_flight.items()):
            if deadline > now:
                return
            del self._in_flight[call]
            scope.cancel()

    async def _attempt(self, journal: Journal, attempt: Attempt) -> Completion:
        """Ask the engine once, and leave a row of it, however it ends."""
        call, completion = attempt.call, None
        journal.active.begin(attempt.submit)
        try:
            with anyio.CancelScope() as scope:
                self._in_flight[call] = (attempt.submit + self._timeout_s, scope)
                completion = await self._engine.generate(structs.replace(call.request, priority=self.lane.priority(call)))
            if completion is None:
                raise CallTimeout(self.lane.role, self._timeout_s)
        except PipelineError as error:
            journal.call(attempt, None, error)
            raise
        except anyio.get_cancelled_exc_class():
            journal.call(attempt, None, CallCancelled("cancelled before the answer came"))
            raise
        finally:
            self._in_flight.pop(call, None)
            journal.active.end(self._clock.now())
        journal.call(attempt, completion, None)
        return completion

    async def _back_off(self, journal: Journal, seconds: float) -> float:
        """Until the call may be sent again; the time at which it may."""
        journal.waiting.begin(self._clock.now())
        try:
            await anyio.sleep(seconds)
        finally:
            journal.waiting.end(now := self._clock.now())
        return now

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
