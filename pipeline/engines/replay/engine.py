"""The `replay` backend: every call is answered from a recorded run, on virtual time and without any model.

Requests enter; the answers of the recorded calls that asked the same leave, when a call took that long then or when a
simulated device would have finished it. What was never generated is never made up: it is a `NeverGenerated`.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import anyio

from pipeline.engine import Backend, Completion, Engine, EngineStatistics, Fact, Request, Tokenizer, Usage
from pipeline.engines.meter import UsageMeter
from pipeline.engines.replay.answers import answer_of, misfit
from pipeline.engines.replay.calls import RecordedCall, RecordedCalls
from pipeline.engines.replay.recording import CALIBRATION, read_recording, sim_spec, tokenizer_of
from pipeline.engines.replay.spec import ReplaySpec
from pipeline.engines.sim.author import Answer
from pipeline.engines.sim.engine import open_devices
from pipeline.engines.validate import validate_request
from pipeline.errors import EngineDead, InputError, NeverGenerated


class Recorded:
    """What one engine of a recorded run answered: an `Author`."""

    def __init__(self, role: str, calls: RecordedCalls, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._role, self._calls = role, calls
        self.tokenizer, self.vocab_size = tokenizer, vocab_size

    def answer(self, request: Request, max_model_len: int) -> Answer:
        """See `Author.answer`; raises `NeverGenerated`."""
        return self.recall(request, max_model_len)[1]

    def recall(self, request: Request, max_model_len: int) -> tuple[RecordedCall, Answer]:
        """The recorded call too."""
        try:
            call = self._calls.find(request)
        except InputError as error:
            raise EngineDead(self._role, str(error)) from error
        if flaw := misfit(call, request, self._role):
            raise NeverGenerated(request.request_id, flaw)
        limit = min(request.max_tokens, max_model_len - len(request.prompt_ids))
        answer = answer_of(call, request, limit, self.tokenizer)
        if answer is None:
            what = f"the call may have {request.max_tokens} tokens, and a recorded text was cut at {call.max_tokens}"
            raise NeverGenerated(request.request_id, what)
        return call, answer


class ReplayEngine:
    """The `Engine` contract over recorded calls, each of which takes as long as it took: nothing slows anything."""

    def __init__(self, role: str, author: Recorded, max_model_len: int) -> None:
        self.role, self._author = role, author
        self.tokenizer, self.vocab_size, self.max_model_len = author.tokenizer, author.vocab_size, max_model_len
        self.facts: dict[str, Fact] = {}
        self._closed = anyio.Event()
        self._meter = UsageMeter(anyio.current_time)

    async def generate(self, request: Request) -> Completion:
        """See `Engine.generate`; raises `NeverGenerated`."""
        validate_request(request, self.max_model_len, self.vocab_size)
        call, answer = self._author.recall(request, self.max_model_len)
        self._meter.begin()
        try:
            with anyio.move_on_after(call.e2e_latency_s):
                await self._closed.wait()
                raise EngineDead(self.role, "it was closed")
        finally:
            self._meter.end()
        usage = Usage(
            input_tokens=call.usage.input_tokens,
            cached_input_tokens=call.usage.cached_input_tokens,
            output_tokens=0 if request.scored_ids else sum(answer.lengths),
        )
        self._meter.count(usage)
        return Completion(
            candidates=answer.candidates,
            option_logprobs=answer.option_logprobs,
            scored_logprobs=answer.scored_logprobs,
            usage=usage,
            timing=call.timing,
        )

    def statistics(self) -> EngineStatistics:
        """See `EngineStatistics`: it is busy while it has a call. Outside of an event loop, as of the last change."""
        return self._meter.statistics(running=self._meter.open_calls)

    async def aclose(self) -> None:
        """See `Engine.aclose`."""
        self._closed.set()


@asynccontextmanager
async def open_replay(specs: Mapping[str, ReplaySpec]) -> AsyncIterator[Mapping[str, Engine]]:
    """Open an engine for each role of `specs`, which must be resolved (`replay_run.as_recorded`); those whose devices are
    simulated and have one name share it. Raises `GraphError` or `InputError` where a run cannot be replayed."""
    calls_of = cache(RecordedCalls)
    recordings = {role: read_recording(spec.run) for role, spec in specs.items()}
    facts = {role: recordings[role].facts(role) for role, spec in specs.items()}
    devices = {role: sim_spec(role, spec, recordings[role]) for role, spec in specs.items() if spec.costs == "simulated"}
    authors = {}
    for role, spec in specs.items():
        tokenizer = tokenizer_of(role, spec, recordings[role])
        authors[role] = Recorded(role, calls_of(Path(spec.run)), tokenizer, facts[role].vocab_size)
    others = {role: ReplayEngine(role, authors[role], facts[role].max_model_len) for role in specs.keys() - devices.keys()}
    async with open_devices(devices, {role: authors[role] for role in devices}) as simulated:
        engines = {role: simulated[role] if role in devices else others[role] for role in specs}
        for role, spec in specs.items():
            engines[role].facts |= _facts(spec, recordings[role].engine(role).backend)
        try:
            yield engines
        finally:
            for engine in others.values():
                await engine.aclose()


def _facts(spec: ReplaySpec, backend: str) -> dict[str, Fact]:
    costs = "calibrated" if spec.costs_from is not None and Path(spec.costs_from).name == CALIBRATION else spec.costs
    return {"replay": spec.run, "replayed_backend": backend, "costs": costs}


BACKEND = Backend(spec=ReplaySpec, open=open_replay, virtual_time=True)
