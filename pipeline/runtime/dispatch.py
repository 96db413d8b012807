"""One request on its way: through its lane, to its engine, into the journal. Waits at the edges of what the lane decides."""

from collections.abc import Awaitable
from itertools import count

import anyio
from msgspec import structs

from pipeline.engine import Completion, Engine, Request
from pipeline.engines.validate import validate_completion
from pipeline.errors import BadCompletion, ChainError, EngineDead, EngineUnavailable, PipelineError
from pipeline.graph.spec import EngineSpec
from pipeline.runtime.backoff import backoff_s
from pipeline.runtime.chain_recorder import Attempt, ChainRecorder, Clock, StageLabel
from pipeline.runtime.lane import Call, Lane
from pipeline.runtime.supervisor import Supervisor


class CallTimeout(EngineUnavailable):
    """An engine did not answer a call within `timeout_s`."""

    def __init__(self, role: str, timeout_s: float) -> None:
        super().__init__(role, f"did not answer within timeout_s={timeout_s:g}")
        self.timeout_s = timeout_s


class CallCancelled(ChainError):
    """The run, or another call of the same chain, ended before the answer came."""


class Dispatcher:
    """The lane of one engine, carried out.

    Calls of a lane have one timeout, so that the oldest in flight is the first to reach it: one watcher for all of
    them costs a call almost nothing, a timer for each costs it more than all the rest.
    """

    def __init__(self, engine: Engine, spec: EngineSpec, clock: Clock) -> None:
        self.lane = Lane(engine.role, spec.max_in_flight)
        self._engine, self._timeout_s, self._max_retries, self._clock = engine, spec.timeout_s, spec.max_retries, clock
        self._in_flight: dict[Call, tuple[float, anyio.CancelScope]] = {}
        self._supervisor = Supervisor(engine, spec, clock, self._oldest)

    async def call(
        self, record: ChainRecorder, label: StageLabel, order: int, step_index: int, request: Request, ready: float
    ) -> Completion:
        """Answer `request`, which could have started at `ready`; raises what the engine raises.

        What was answered before the run was taken up again is not asked a second time. A call that backs off keeps its
        place in flight, so that a busy engine is asked for less. That an engine died is not the call's fault: it is sent
        again as often as the engine is restarted.
        """
        if (answered := record.recall(label, request)) is not None:
            return answered.completion(self._engine.tokenizer)
        call = Call(label.name, order, request)
        completion: Completion | None = None
        failures = 0
        try:
            submit = await self._wait(call, record, ready)
            for number in count():
                attempt = Attempt(label=label, call=call, step_index=step_index, number=number, ready=ready, submit=submit)
                life = self._supervisor.life
                try:
                    completion = await self._attempt(record, attempt)
                    return completion
                except EngineDead as death:
                    pause: Awaitable[None] = self._supervisor.wait_restarted(life, death)
                except EngineUnavailable as refusal:
                    if failures >= self._max_retries:
                        raise
                    pause = anyio.sleep(backoff_s(request.request_id, failures, refusal.retry_after_s))
                    failures += 1
                ready = self._clock.now()
                submit = await self._pause(record, pause)
            raise AssertionError("unreachable")
        finally:
            self.lane.leave(call, completion.usage.output_tokens // max(1, request.n) if completion else None)
            self._start()

    async def watch(self) -> None:
        """Give up attempts that take too long, and see to the engine's life, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._supervisor.watch)
            await self._watch_deadlines()

    async def _watch_deadlines(self) -> None:
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

    def _oldest(self) -> float | None:
        """When the oldest attempt in flight left."""
        deadline, _ = next(iter(self._in_flight.values()), (None, None))
        return None if deadline is None else deadline - self._timeout_s

    async def _attempt(self, record: ChainRecorder, attempt: Attempt) -> Completion:
        """Ask the engine once, and leave a row of it, however it ends."""
        call, completion = attempt.call, None
        record.active.begin(attempt.submit)
        try:
            with anyio.CancelScope() as scope:
                self._in_flight[call] = (attempt.submit + self._timeout_s, scope)
                completion = await self._engine.generate(structs.replace(call.request, priority=self.lane.priority(call)))
            if completion is None:
                raise CallTimeout(self.lane.role, self._timeout_s)
            if flaw := validate_completion(completion, call.request, self._engine.vocab_size):
                raise BadCompletion(self.lane.role, call.request.request_id, flaw)
        except PipelineError as error:
            record.call(attempt, None, error)
            raise
        except anyio.get_cancelled_exc_class():
            record.call(attempt, None, CallCancelled("cancelled before the answer came"))
            raise
        finally:
            self._in_flight.pop(call, None)
            record.active.end(self._clock.now())
        record.call(attempt, completion, None)
        return completion

    async def _pause(self, record: ChainRecorder, pause: Awaitable[None]) -> float:
        """Until the call may be sent again; the time at which it may."""
        record.waiting.begin(self._clock.now())
        try:
            await pause
            await self._supervisor.wait_ready()
        finally:
            record.waiting.end(now := self._clock.now())
        return now

    async def _wait(self, call: Call, record: ChainRecorder, ready: float) -> float:
        """Until the lane lets `call` start and the engine is there; the time at which both hold."""
        record.waiting.begin(ready)
        self.lane.put(call)
        self._start()
        try:
            if not call.started:
                call.gate = anyio.Event()
                await call.gate.wait()
            if self._supervisor.away:
                await self._supervisor.wait_ready()
        finally:
            now = self._clock.now()
            record.waiting.end(now)
        return now

    def _start(self) -> None:
        """Let every call go that may."""
        while (call := self.lane.take()) is not None:
            if call.gate is not None:
                call.gate.set()
