"""The one retry loop: sends a request to an engine until it is answered or may be sent no more. Chains and rewards use it.

Requests enter, validated completions leave. Knows of no client queue and keeps no record: an `AttemptListener` is told of every attempt.
"""

import asyncio
import math
from collections.abc import Awaitable
from typing import Any, TypeVar

import anyio

from pipeline.engine import Completion, Engine, Remote, Request
from pipeline.engines.validate import validate_completion
from pipeline.errors import BadCompletion, ChainError, EngineDead, EngineUnavailable
from pipeline.graph.spec import EngineSpec
from pipeline.runtime.clock import Clock, backoff_s, sleep_noticing
from pipeline.runtime.supervisor import Supervisor

T = TypeVar("T")
CHECKS = 32
"""The number of checks in every `hang_s`, or `timeout_s` where that is less, whether this process ran and the engine works."""

_SHORTEST_S = 1e-6
"""A clock may not show a shorter sleep than this many seconds."""


class CallTimeout(EngineUnavailable):
    """A call timed out: its engine made no progress for `hang_s`, or did not answer it within `timeout_s`."""

    def __init__(self, role: str, limit: str) -> None:
        """`limit`: which of the two it was, and what it is."""
        super().__init__(role, f"{'made no progress for' if limit.startswith('hang_s') else 'did not answer within'} {limit}")


class CallCancelled(ChainError):
    """The run, or another call of the same chain, ended before the answer came."""


class Awaited:
    """The answers of one engine that are awaited, each since it was asked for. None must have been asked for before those given earlier.

    A `CancelScope` for each would cost three times as much.
    """

    def __init__(self, role: str) -> None:
        self._role = role
        self._asked: dict[asyncio.Task[Any], float] = {}
        self._limits: dict[asyncio.Task[Any], str] = {}
        """The limits that ended the wait for answers whose tasks have not noticed yet."""

    @property
    def oldest(self) -> float | None:
        """When the first of them was asked for; None while no answer is awaited."""
        return next(iter(self._asked.values()), None)

    def give_up(self, asked: float, limit: str) -> None:
        """Stop waiting for the answers that were asked for at `asked` or before, because of this `limit`."""
        for task, when in list(self._asked.items()):
            if when > asked:
                return
            del self._asked[task]
            self._limits[task] = limit
            task.cancel()

    async def wait_for(self, answer: Awaitable[T], now: float) -> T:
        """The `answer`, which this task asks for `now`; raises `CallTimeout` once `give_up` was called with a time not before that.

        The task is cancelled once, and takes that back, as `asyncio.timeout` does it.
        """
        task = asyncio.current_task()
        assert task is not None
        self._asked[task] = now
        before = task.cancelling()
        try:
            return await answer
        except asyncio.CancelledError:
            if task not in self._asked and task.uncancel() <= before:
                raise CallTimeout(self._role, self._limits[task]) from None
            raise
        finally:
            self._asked.pop(task, None)
            self._limits.pop(task, None)


class AttemptListener:
    """Is told of every attempt of one call, and does nothing; `now` is the time of the run's clock in seconds."""

    def begin_attempt(self, request: Request) -> Request:
        """An attempt is about to be sent; returns `request` as it is to be sent."""
        return request

    def end_attempt(self, end: Completion | Exception) -> None:
        """The attempt that began last got an answer, or failed with an error."""

    def begin_wait(self, now: float) -> None:
        """The call begins to wait for its next attempt, or for the engine's restart."""

    def end_wait(self, now: float) -> None:
        """The wait is over; unless it was cancelled the next attempt begins now."""


UNOBSERVED = AttemptListener()


class RetryingCaller:
    """Sends calls to one engine and repeats those that may be; `watch` must run while it is used.

    All calls of an engine have the same limits, so that the oldest attempt in flight is the first to reach one: one watcher
    for all of them costs a call almost nothing, a timer for each costs it more than all the rest.
    """

    def __init__(self, engine: Engine, spec: EngineSpec, clock: Clock) -> None:
        """`clock` must show the event loop's time, which must be running."""
        self._engine, self._max_retries, self._clock = engine, spec.max_retries, clock
        self._hang_s, self._timeout_s = spec.hang_s, spec.timeout_s
        self._awaited = Awaited(engine.role)
        self._lost_s = 0.0
        """Seconds in which this process did not run, which nobody waited."""
        # That a server has calls does not mean that it computes.
        self._measure = "requests" if isinstance(engine, Remote) else "busy_s"
        self._measured, self._progressed = math.nan, 0.0
        """The measure of its progress at the last look, and when it had changed then."""
        self.supervisor = Supervisor(engine, spec)

    async def ask(self, request: Request, observer: AttemptListener = UNOBSERVED) -> Completion:
        """The engine's answer to `request`, checked to be valid; raises what the engine raises.

        After an `EngineUnavailable` (the engine is busy, the attempt timed out, or the answer was invalid) the request is sent again,
        up to `max_retries` times, after waits that grow. When no repetition is left and a `Remote` engine answers nobody, one more is
        made as soon as it does. After an `EngineDead` it is sent again as often as the engine is restarted.
        """
        failures, spared = 0, False
        while True:
            restarts = self.supervisor.restarts
            try:
                return await self._attempt(request, observer)
            except EngineDead as death:
                ready: Awaitable[None] = self.supervisor.wait_restarted(restarts, death)
            except EngineUnavailable as refusal:
                if failures < self._max_retries:
                    ready = anyio.sleep(backoff_s(request.request_id, failures, refusal.retry_after_s))
                    failures += 1
                elif spared or not isinstance(self._engine, Remote):
                    raise
                else:
                    ready, spared = _wait_answering(self._engine, refusal), True
            observer.begin_wait(self._clock.now())
            try:
                await ready
                await self.supervisor.wait_ready()
            finally:
                observer.end_wait(self._clock.now())

    async def watch(self) -> None:
        """Give up attempts that take too long, and restart the engine when it dies or hangs; runs until it is cancelled."""
        limit_s = min(self._hang_s, self._timeout_s or self._hang_s)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.supervisor.watch)
            while True:
                left_s = max(self._look(), _SHORTEST_S)
                self._lost_s += await sleep_noticing(min(left_s, limit_s / CHECKS), self._clock)

    def _now(self) -> float:
        """The time of the run's clock without what was lost."""
        return self._clock.now() - self._lost_s

    def _look(self) -> float:
        """Give up what has reached a limit; how many seconds it is at least until something else does."""
        now, oldest, left_s = self._now(), self._awaited.oldest, math.inf
        measured = getattr(self._engine.statistics(), self._measure)
        if measured != self._measured:
            self._measured, self._progressed = measured, now
        silent_s = 0.0 if oldest is None else now - max(self._progressed, oldest)
        if silent_s >= self._hang_s:
            if not self.supervisor.kill(f"it computed nothing for {silent_s:.3g} s though it had calls (hang_s={self._hang_s:g})"):
                self._awaited.give_up(now - self._hang_s, f"hang_s={self._hang_s:g}")
        else:
            left_s = self._hang_s - silent_s
        if self._timeout_s is None or oldest is None:
            return left_s
        self._awaited.give_up(now - self._timeout_s, f"timeout_s={self._timeout_s:g}")
        oldest = self._awaited.oldest
        return left_s if oldest is None else min(left_s, oldest + self._timeout_s - now)

    async def _attempt(self, request: Request, observer: AttemptListener) -> Completion:
        """Send `request` once; the observer is told how that ended, whatever happens."""
        sent = observer.begin_attempt(request)
        end: Completion | Exception = CallCancelled("cancelled before the answer came")
        try:
            answer = await self._awaited.wait_for(self._engine.generate(sent), self._now())
            if flaw := validate_completion(answer, request, self._engine.vocab_size):
                raise BadCompletion(self._engine.role, request.request_id, flaw)
            end = answer
            return answer
        except Exception as failure:
            end = failure
            raise
        finally:
            observer.end_attempt(end)


async def _wait_answering(engine: Remote, refusal: EngineUnavailable) -> None:
    """Wait until an engine that answers nobody does so again; raises `refusal` where it has answered others all along."""
    if not await engine.wait_answering():
        raise refusal
