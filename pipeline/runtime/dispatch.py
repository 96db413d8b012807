"""Sends requests to one engine: each waits in the engine's client queue, is sent and retried, and is recorded with its chain."""

import asyncio
from collections.abc import Callable

from msgspec import structs

from pipeline.engine import Completion, Engine, Request
from pipeline.graph.spec import EngineSpec
from pipeline.reasoning.chain import Chain
from pipeline.runtime.chain_recorder import Attempt, ChainRecorder, StageLabel
from pipeline.runtime.clock import Clock
from pipeline.runtime.lane import Call, CallRoom, Lane
from pipeline.runtime.retry import AttemptListener, RetryingCaller


class Dispatcher:
    """Sends the calls of all chains to one engine, in the order of its client queue."""

    def __init__(self, engine: Engine, spec: EngineSpec, clock: Clock, cache_tokens: float | None = None) -> None:
        """`cache_tokens`: see `Settings.cache_tokens`; None: calls in flight are bounded by their number alone."""
        self.lane = Lane(engine.role, spec.max_in_flight, None if cache_tokens is None else CallRoom(cache_tokens))
        self._engine, self._clock = engine, clock
        self.caller = RetryingCaller(engine, spec, clock)
        """Its `watch` must run."""
        self._gates: dict[Call, asyncio.Future[None]] = {}
        """What each call that waits is opened by; an event of anyio's would cost three times as much."""

    async def call(
        self, record: ChainRecorder, chain: Chain, label: StageLabel, step_index: int, request: Request, ready: float
    ) -> Completion:
        """The completion of the `chain`'s `request`, which could have been sent at `ready`; raises what the engine raises.

        A request that was answered in an earlier session of the run is not sent again. A call that waits for its next attempt
        keeps its place in flight, so that a busy engine gets fewer calls.
        """
        if (answered := record.recall(label, request)) is not None:
            return answered.completion(self._engine.tokenizer)
        call = Call(label.name, chain.order, request)
        completion: Completion | None = None
        try:
            submit = await self._wait(call, record, ready)
            attempt = Attempt(label=label, call=call, step_index=step_index, number=0, ready=ready, submit=submit)
            completion = await self.caller.ask(request, _RecordedAttempts(record, attempt, self.lane.priority, self._clock))
            return completion
        finally:
            self.lane.leave(call, completion.usage.output_tokens // max(1, request.n) if completion else None)
            self._start()

    async def _wait(self, call: Call, record: ChainRecorder, ready: float) -> float:
        """Wait until the client queue lets `call` start and the engine is up; returns when that is."""
        record.waiting.begin(ready)
        try:
            if not self.lane.start(call):
                gate = self._gates[call] = asyncio.get_running_loop().create_future()
                self.lane.put(call)
                await gate
            if self.caller.supervisor.down:
                await self.caller.supervisor.wait_ready()
        finally:
            self._gates.pop(call, None)
            now = self._clock.now()
            record.waiting.end(now)
        return now

    def _start(self) -> None:
        """Start every waiting call that may be in flight now."""
        while (call := self.lane.take()) is not None:
            if not (gate := self._gates[call]).done():
                gate.set_result(None)


class _RecordedAttempts(AttemptListener):
    """Records every attempt of one call in `record`; `attempt` is the first of them."""

    def __init__(self, record: ChainRecorder, attempt: Attempt, priority: Callable[[Call], int], clock: Clock) -> None:
        self._record, self._attempt, self._priority, self._clock = record, attempt, priority, clock

    def begin_attempt(self, request: Request) -> Request:
        return structs.replace(request, priority=self._priority(self._attempt.call))

    def end_attempt(self, end: Completion | Exception) -> None:
        self._record.call(self._attempt, end)

    def begin_wait(self, now: float) -> None:
        self._attempt = structs.replace(self._attempt, number=self._attempt.number + 1, ready=now)
        self._record.waiting.begin(now)

    def end_wait(self, now: float) -> None:
        self._attempt = structs.replace(self._attempt, submit=now)
        self._record.waiting.end(now)
