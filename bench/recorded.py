"""Calls of a run that are sent again, all at once: engines enter, seconds leave. What no schedule of these calls is much faster than."""

import anyio
from bound import AnsweredCall

from pipeline.engine import Completion, Engine, EngineStatistics, Interruptible, Request


class RecordingEngine:
    """An engine that records its answered calls, up to `most`. It cannot be restarted: a run in which an engine died is no measurement."""

    def __init__(self, engine: Engine, most: int) -> None:
        self._engine, self._most = engine, most
        self._sent = 0
        self._answered: dict[int, AnsweredCall] = {}
        self.role, self.tokenizer, self.facts = engine.role, engine.tokenizer, engine.facts
        self.max_model_len, self.vocab_size = engine.max_model_len, engine.vocab_size
        if isinstance(engine, Interruptible):
            self.interrupt = engine.interrupt

    @property
    def calls(self) -> list[AnsweredCall]:
        """The answered ones of its first `most` calls, in the order in which they were sent."""
        return [self._answered[number] for number in sorted(self._answered)]

    @property
    def whole(self) -> bool:
        """Whether it had no more calls than it records."""
        return self._sent <= self._most

    async def generate(self, request: Request) -> Completion:
        number, self._sent = self._sent, self._sent + 1
        completion = await self._engine.generate(request)
        if number < self._most:
            self._answered[number] = AnsweredCall(request=request, completion=completion)
        return completion

    def statistics(self) -> EngineStatistics:
        return self._engine.statistics()

    async def aclose(self) -> None:
        await self._engine.aclose()


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
