"""The one retry loop: sends a request to an engine until it is answered or may be sent no more. Chains and rewards use it.

Requests enter, validated completions leave. Knows of no lane and keeps no record: an `Observer` is told of every attempt.
"""

from collections.abc import Awaitable
from typing import Protocol

import anyio
import anyio.lowlevel

from pipeline.engine import Completion, Engine, Remote, Request
from pipeline.engines.validate import validate_completion
from pipeline.errors import BadCompletion, ChainError, EngineDead, EngineUnavailable
from pipeline.graph.spec import EngineSpec
from pipeline.runtime.backoff import backoff_s
from pipeline.runtime.chain_recorder import Clock
from pipeline.runtime.supervisor import Supervisor
from pipeline.runtime.suspension import sleep_noticing
from pipeline.runtime.waiting import Deadlines, Expired

CHECKS = 32
"""How many times in every `timeout_s` it is checked whether this process ran."""


class CallTimeout(EngineUnavailable):
    """An engine did not answer a call within `timeout_s`."""

    def __init__(self, role: str, timeout_s: float) -> None:
        super().__init__(role, f"did not answer within timeout_s={timeout_s:g}")
        self.timeout_s = timeout_s


class CallCancelled(ChainError):
    """The run, or another call of the same chain, ended before the answer came."""


class Observer(Protocol):
    """Is told of every attempt of one call; `now` is the time of the run's clock in seconds."""

    def begin_attempt(self, request: Request) -> Request:
        """An attempt is about to be sent; returns `request` as it is to be sent."""

    def end_attempt(self, completion: Completion | None, error: Exception | None) -> None:
        """The attempt that began last got `completion`, or failed with `error`."""

    def begin_pause(self, now: float) -> None:
        """The call begins to wait for its next attempt, or for the engine's restart."""

    def end_pause(self, now: float) -> None:
        """The wait is over; unless it was cancelled the next attempt begins now."""


class Unobserved:
    """An `Observer` that records nothing."""

    def begin_attempt(self, request: Request) -> Request:
        """See `Observer.begin_attempt`."""
        return request

    def end_attempt(self, completion: Completion | None, error: Exception | None) -> None:
        """See `Observer.end_attempt`."""

    def begin_pause(self, now: float) -> None:
        """See `Observer.begin_pause`."""

    def end_pause(self, now: float) -> None:
        """See `Observer.end_pause`."""


UNOBSERVED = Unobserved()


class RetryingCaller:
    """Sends calls to one engine and repeats those that may be; `watch` must run while it is used.

    All calls of an engine have one time-out, so that the oldest attempt in flight is the first to reach it: one watcher
    for all of them costs a call almost nothing, a timer for each costs it more than all the rest.
    """

    def __init__(self, engine: Engine, spec: EngineSpec, clock: Clock) -> None:
        """`clock` must show the event loop's time, which must be running."""
        self._engine, self._timeout_s, self._max_retries, self._clock = engine, spec.timeout_s, spec.max_retries, clock
        self._deadlines = Deadlines()
        self.supervisor = Supervisor(engine, spec, clock, self._oldest_s)

    async def ask(self, request: Request, observer: Observer = UNOBSERVED) -> Completion:
        """The engine's answer to `request`, checked to be valid; raises what the engine raises.

        After an `EngineUnavailable` (the engine is busy, the attempt timed out, or the answer was invalid) the request is sent again,
        up to `max_retries` times, after pauses that grow; at once and as often as it is `moved`. When no repetition is left and a
        `Remote` engine answers nobody, one more is made as soon as it does. After an `EngineDead` it is sent again as often as the
        engine is restarted.
        """
        failures, spared = 0, False
        while True:
            restarts = self.supervisor.restarts
            try:
                return await self._attempt(request, observer)
            except EngineDead as death:
                pause: Awaitable[None] = self.supervisor.wait_restarted(restarts, death)
            except EngineUnavailable as refusal:
                if refusal.moved:
                    pause = anyio.lowlevel.checkpoint()
                elif failures < self._max_retries:
                    pause = anyio.sleep(backoff_s(request.request_id, failures, refusal.retry_after_s))
                    failures += 1
                elif spared or not isinstance(self._engine, Remote):
                    raise
                else:
                    pause, spared = _wait_answering(self._engine, refusal), True
            observer.begin_pause(self._clock.now())
            try:
                await pause
                await self.supervisor.wait_ready()
            finally:
                observer.end_pause(self._clock.now())

    async def watch(self) -> None:
        """Give up attempts that take too long, and restart the engine when it dies; runs until it is cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.supervisor.watch)
            while True:
                now = self._clock.now()
                deadline = self._deadlines.next
                left_s = self._timeout_s if deadline is None else deadline - now
                if left_s > 0 and (lost_s := await sleep_noticing(min(left_s, self._timeout_s / CHECKS), self._clock)):
                    self._deadlines.postpone(lost_s)
                self._deadlines.expire(self._clock.now())

    async def _attempt(self, request: Request, observer: Observer) -> Completion:
        """Send `request` once; the observer is told how that ended, whatever happens."""
        sent, role = observer.begin_attempt(request), self._engine.role
        try:
            completion = await self._deadlines.wait_for(self._engine.generate(sent), self._clock.now() + self._timeout_s)
            if flaw := validate_completion(completion, request, self._engine.vocab_size):
                raise BadCompletion(role, request.request_id, flaw)
        except Expired:
            timeout = CallTimeout(role, self._timeout_s)
            observer.end_attempt(None, timeout)
            raise timeout from None
        except Exception as error:
            observer.end_attempt(None, error)
            raise
        except anyio.get_cancelled_exc_class():
            observer.end_attempt(None, CallCancelled("cancelled before the answer came"))
            raise
        observer.end_attempt(completion, None)
        return completion

    def _oldest_s(self) -> float | None:
        """When the oldest attempt in flight was sent; None while none is in flight."""
        deadline = self._deadlines.next
        return None if deadline is None else deadline - self._timeout_s


async def _wait_answering(engine: Remote, refusal: EngineUnavailable) -> None:
    """Wait until an engine that answers nobody does so again; raises `refusal` where it has answered others all along."""
    if not await engine.wait_answering():
        raise refusal
