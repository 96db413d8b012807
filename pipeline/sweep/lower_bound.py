"""The lower bound of a run's wall time by device: the run's calls enter, seconds leave.

A backend that can say how long its devices must compute for these calls at least is asked (`Backend.least_s`). Else each engine answers
the calls again, all ready at once and with no other engine running, and the times of engines that share a device are added up, as if they
took turns on it.
"""

from collections import Counter
from collections.abc import Collection, Mapping

import anyio
from msgspec import structs

from pipeline.analysis.resources import devices_of, facts_of
from pipeline.engine import AnsweredCall, Completion, Engine, EngineStatistics, Interruptible, PrefixCacheReset, Request
from pipeline.engines.registry import by_backend
from pipeline.graph.plan import settings_of
from pipeline.graph.spec import EngineSpec


class RecordingEngine:
    """An engine that records its answered calls, up to `most`. It cannot be restarted: a run in which an engine died is no measurement."""

    def __init__(self, engine: Engine, most: int) -> None:
        self._engine, self._most = engine, most
        self._sent = 0
        self._answered: dict[int, AnsweredCall] = {}
        self.widest = 0
        """The most sequences that one chain ever had here at once."""
        self._sequences: Counter[str] = Counter()
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
        self._sequences[request.affinity] += request.n
        self.widest = max(self.widest, self._sequences[request.affinity])
        try:
            completion = await self._engine.generate(request)
        finally:
            self._sequences[request.affinity] -= request.n
        if number < self._most:
            self._answered[number] = AnsweredCall(request=request, completion=completion)
        return completion

    def statistics(self) -> EngineStatistics:
        return self._engine.statistics()

    async def aclose(self) -> None:
        await self._engine.aclose()


async def device_limits(
    engines: Mapping[str, Engine], specs: Mapping[str, EngineSpec], recording: Mapping[str, RecordingEngine], live: int
) -> dict[str, float]:
    """The least seconds of each device for all that was recorded, with at most `live` chains at once; empty where an engine had more
    calls than it records. `specs` are those of the recorded engines; their prefix caches are emptied before they answer again."""
    if not all(each.whole for each in recording.values()):
        return {}
    found: Counter[str] = Counter()
    for backend, group in by_backend(specs):
        sequences = {role: max(1, min(spec.max_in_flight, live) * recording[role].widest) for role, spec in group.items()}
        calls = {role: recording[role].calls for role in group}
        known = backend.least_s(group, calls, sequences) if backend.least_s else {}
        found.update(known or await _replayed(engines, group, recording, live))
    return dict(found)


async def _replayed(
    engines: Mapping[str, Engine], specs: Mapping[str, EngineSpec], recording: Mapping[str, RecordingEngine], live: int
) -> Mapping[str, float]:
    """Seconds by device that the engines of `specs` take one after the other for their calls."""
    found: Counter[str] = Counter()
    for role, spec in specs.items():
        await reset_caches(engines, [role])
        requests = [_as_answered(call) for call in recording[role].calls]
        facts = facts_of({role: settings_of(spec)}, {role: engines[role].facts})[role]
        found.update(dict.fromkeys(devices_of(role, facts), await replay_s(engines[role], requests, min(spec.max_in_flight, live))))
    return found


def _as_answered(call: AnsweredCall) -> Request:
    """The request of `call` or, where it was interrupted, one that asks for no more than it was given."""
    candidates = call.completion.candidates
    if all(candidate.finish_reason != "interrupted" for candidate in candidates):
        return call.request
    longest = max(len(candidate.ids) for candidate in candidates)
    return structs.replace(call.request, max_tokens=max(longest, 1), interruptible=False)


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


async def reset_caches(engines: Mapping[str, Engine], roles: Collection[str]) -> bool:
    """Empty the prefix caches of the engines `roles`; returns whether one of them cannot be emptied."""
    resettable = [engine for role, engine in engines.items() if role in roles and isinstance(engine, PrefixCacheReset)]
    for engine in resettable:
        await engine.reset_prefix_cache()
    return len(resettable) < len(roles)
