"""The lower bound of a run's wall time, which no schedule of its calls can beat: recorded requests enter, seconds leave.

It is the time that an engine takes for its requests when all are ready at once and no other engine works.
"""

from collections.abc import Mapping

import anyio
from msgspec import structs

from pipeline.engine import Completion, Engine, EngineStatistics, Interruptible, Request


class RecordingEngine:
    """An engine that records its requests, up to `most`; make it with `recording`. It cannot be restarted: a run in which an engine died
    is no measurement."""

    def __init__(self, engine: Engine, most: int) -> None:
        self._engine, self._most = engine, most
        self.requests: list[Request] = []
        """The requests so far, at most `most`."""
        self.role, self.tokenizer, self.facts = engine.role, engine.tokenizer, engine.facts
        self.max_model_len, self.vocab_size = engine.max_model_len, engine.vocab_size

    async def generate(self, request: Request) -> Completion:
        """See `Engine.generate`."""
        place = len(self.requests)
        if place < self._most:
            self.requests.append(request)
        completion = await self._engine.generate(request)
        if place < self._most:
            self.requests[place] = _as_answered(request, completion)
        return completion

    def statistics(self) -> EngineStatistics:
        """See `Engine.statistics`."""
        return self._engine.statistics()

    async def aclose(self) -> None:
        """See `Engine.aclose`."""
        await self._engine.aclose()


def _as_answered(request: Request, completion: Completion) -> Request:
    """`request` or, where it was interrupted, one that asks for no more than it was given."""
    if all(candidate.finish_reason != "interrupted" for candidate in completion.candidates):
        return request
    longest = max(len(candidate.ids) for candidate in completion.candidates)
    return structs.replace(request, max_tokens=max(longest, 1), interruptible=False)


class InterruptibleRecordingEngine(RecordingEngine):
    """A `RecordingEngine` over an engine whose requests can be ended early."""

    def __init__(self, engine: Interruptible, most: int) -> None:
        super().__init__(engine, most)
        self.interrupt = engine.interrupt


def recording(engine: Engine, most: int) -> RecordingEngine:
    """`engine` with its requests recorded, up to `most`; it can be interrupted where `engine` can."""
    return InterruptibleRecordingEngine(engine, most) if isinstance(engine, Interruptible) else RecordingEngine(engine, most)


async def replay_s(engine: Engine, requests: list[Request], max_in_flight: int) -> float:
    """Seconds that `engine` takes for `requests`, all ready at once and sent in their order, at most `max_in_flight` at a time."""
    waiting = iter(requests)

    async def send_in_turn() -> None:
        for request in waiting:
            await engine.generate(request)

    started = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for _ in range(min(max_in_flight, len(requests))):
            tasks.start_soon(send_in_turn)
    return anyio.current_time() - started


def all_requests(recording: Mapping[str, RecordingEngine], calls: Mapping[str, int]) -> dict[str, list[Request]]:
    """The recorded requests by role; empty where an engine had more requests (`calls`, by role) than it recorded."""
    whole = all(len(engine.requests) == calls.get(role, 0) for role, engine in recording.items())
    return {role: engine.requests for role, engine in recording.items() if engine.requests} if whole else {}
