"""The `replay` backend: every call is answered from a recorded run, on virtual time and without any model.

Requests enter; the answers of the recorded calls with the same requests leave, after the time that each call took then or when a
simulated device would have finished it. A request that was never answered is never given an invented answer: it raises
`NeverGenerated`.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import anyio

from pipeline.engine import Backend, Candidate, Completion, Engine, EngineStatistics, Fact, Request, Tokenizer, Usage
from pipeline.engines.meter import UsageMeter
from pipeline.engines.replay.calls import RecordedCall, RecordedCalls
from pipeline.engines.replay.recording import CALIBRATION, Recording, read_recording, sim_spec, tokenizer_of
from pipeline.engines.replay.spec import ReplaySpec
from pipeline.engines.sim.engine import open_devices
from pipeline.engines.sim.output import Output
from pipeline.engines.validate import validate_request
from pipeline.errors import EngineDead, InputError, NeverGenerated


class RecordedText:
    """The `TextSource` of what one engine of a recorded run answered."""

    def __init__(self, role: str, calls: RecordedCalls, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._role, self._calls = role, calls
        self.tokenizer, self.vocab_size = tokenizer, vocab_size

    def output(self, request: Request, max_model_len: int) -> Output:
        """Raises `NeverGenerated`."""
        return self.recall(request, max_model_len)[1]

    def recall(self, request: Request, max_model_len: int) -> tuple[RecordedCall, Output]:
        """The recorded call with the same request, and the part of its answer that `request` gets; raises `NeverGenerated`."""
        try:
            call = self._calls.find(request)
        except InputError as error:
            raise EngineDead(self._role, str(error)) from error
        if flaw := mismatch(call, request, self._role):
            raise NeverGenerated(request.request_id, flaw)
        limit = min(request.max_tokens, max_model_len - len(request.prompt_ids))
        output = output_of(call, request, limit, self.tokenizer)
        if output is not None and request.logprobs and any(each.ids and each.confidence is None for each in output.candidates):
            raise NeverGenerated(request.request_id, "no log probabilities of this text were recorded")
        if output is None:
            what = f"the call allows {request.max_tokens} tokens, but a recorded text was cut at {call.max_tokens}"
            raise NeverGenerated(request.request_id, what)
        return call, output


def mismatch(call: RecordedCall, request: Request, role: str) -> str | None:
    """Why `call`, which has the id and prompt of `request`, cannot answer it, as a clause; None where it can."""
    if call.engine != role:
        return f"the recorded call went to the engine `{call.engine}`"
    for name, then, now in (
        ("temperature", call.temperature, request.temperature),
        ("top_p", call.top_p, request.top_p),
        ("seed", call.seed, request.seed),
        ("stop", call.stop_sequences, request.stop),
        ("options", call.option_ids, request.option_ids),
    ):
        if then != now:
            return f"the call has a different {name} than the recorded one"
    if request.n > call.choice_count:
        return f"the call asks for {request.n} candidates, but {call.choice_count} were recorded"
    return None


def output_of(call: RecordedCall, request: Request, limit: int, tokenizer: Tokenizer) -> Output | None:
    """The part of the answer in `call` that `request` gets where its candidates may have `limit` tokens; None where a recorded text
    was cut before that.

    A candidate depends on the seed and its own number alone (`Request.seed`), and its text on nothing that comes after. So the
    first few of the recorded candidates, and the beginnings of their texts, are what the model would have written.
    """
    if request.scored_ids:
        return Output((), (1,), scored_logprobs=call.scored_logprobs)
    each = list(zip(call.output_token_ids, call.finish_reason, call.stop_reason, call.confidences, strict=True))[: request.n]
    candidates, lengths = [], []
    for ids, finish, stop, confidence in each:
        sampled = len(ids) + (finish == "stop" and stop is None)  # the end of the sequence was sampled and is not kept
        if request.max_tokens != call.max_tokens or len(ids) > limit:
            if finish == "length" and len(ids) < limit:
                return None
            if sampled > limit:
                ids, finish, stop, sampled, confidence = ids[:limit], "length", None, limit, None
        candidates.append(
            Candidate(
                ids=ids,
                text=tokenizer.decode(ids),
                cumulative_logprob=None,
                finish_reason=finish,
                stop_reason=stop,
                confidence=confidence,
            )
        )
        lengths.append(max(sampled, 1))
    return Output(tuple(candidates), tuple(lengths), call.option_logprobs)


class ReplayEngine:
    """The `Engine` contract over recorded calls, each of which takes as long as it did when it was recorded, whatever else is running."""

    def __init__(self, role: str, source: RecordedText, max_model_len: int) -> None:
        self.role, self._source = role, source
        self.tokenizer, self.vocab_size, self.max_model_len = source.tokenizer, source.vocab_size, max_model_len
        self.facts: dict[str, Fact] = {}
        self._closed = anyio.Event()
        self._meter = UsageMeter(anyio.current_time)

    async def generate(self, request: Request) -> Completion:
        """Raises `NeverGenerated`."""
        validate_request(request, self.max_model_len, self.vocab_size, adapters=None)  # the recorded calls tell
        call, output = self._source.recall(request, self.max_model_len)
        self._meter.begin()
        try:
            with anyio.move_on_after(call.e2e_latency_s):
                await self._closed.wait()
                raise EngineDead(self.role, "it was closed")
        finally:
            self._meter.end()
        usage = Usage(input_tokens=call.usage.input_tokens, output_tokens=output.sampled)  # what was cached is of another run's cache
        self._meter.count(usage)
        return Completion(
            candidates=output.candidates,
            option_logprobs=output.option_logprobs,
            scored_logprobs=output.scored_logprobs,
            usage=usage,
            timing=call.timing,
        )

    def statistics(self) -> EngineStatistics:
        """It is busy while it has a call; outside of an event loop, until the last call began or ended."""
        return self._meter.statistics(running=self._meter.open_calls)

    async def aclose(self) -> None:
        self._closed.set()


@asynccontextmanager
async def open_replay(specs: Mapping[str, ReplaySpec]) -> AsyncIterator[Mapping[str, Engine]]:
    """Open an engine for each role of `specs`, which must have gone through `recording.as_recorded`; those with simulated devices of
    one name share it. Raises `GraphError` or `InputError` where a run cannot be replayed."""
    calls_of = cache(RecordedCalls)
    recordings = {role: read_recording(spec.run) for role, spec in specs.items()}
    limits = {role: recording.limits(role) for role, recording in recordings.items()}
    devices = {role: sim_spec(role, spec, recordings[role]) for role, spec in specs.items() if spec.costs == "simulated"}
    sources = {}
    for role, spec in specs.items():
        tokenizer = tokenizer_of(role, spec, recordings[role])
        sources[role] = RecordedText(role, calls_of(Path(spec.run)), tokenizer, limits[role].vocab_size)
    others = {role: ReplayEngine(role, sources[role], limits[role].max_model_len) for role in specs.keys() - devices.keys()}
    async with open_devices(devices, {role: sources[role] for role in devices}) as simulated:
        engines = {role: simulated[role] if role in devices else others[role] for role in specs}
        for role, spec in specs.items():
            measured = role in calls_of(Path(spec.run)).measured
            engines[role].facts |= _facts(role, spec, recordings[role], measured=measured)
        try:
            yield engines
        finally:
            for engine in others.values():
                await engine.aclose()


def _facts(role: str, spec: ReplaySpec, recording: Recording, *, measured: bool) -> dict[str, Fact]:
    """The facts (`Engine.facts`) about the replay; a simulated engine adds those about its device itself. `measured`: whether log
    probabilities of what it wrote were recorded."""
    then = recording.file.engine_facts.get(role, {})
    answers = "simulated" if then.get("answers") == "simulated" else "recorded"
    costs = "calibrated" if spec.costs_from is not None and Path(spec.costs_from).name == CALIBRATION else spec.costs
    facts: dict[str, Fact] = {"answers": answers, "replay": spec.run, "replayed_backend": recording.engine(role).backend, "costs": costs}
    return facts | {"cannot": cannot_of(role, recording, measured=measured)}


def cannot_of(role: str, recording: Recording, *, measured: bool) -> tuple[str, ...]:
    """What a replay of `role` cannot do of all that stages may need; see the fact `cannot`."""
    stated: Any = recording.file.engine_facts.get(role, {}).get("cannot", ())
    cannot = [need for need in stated if need not in ("seeds", "logprobs")]  # what was sampled was recorded
    return (*cannot, *(() if measured else ("logprobs",)))


def _tokenizer_of(role: str, spec: ReplaySpec) -> Tokenizer:
    return tokenizer_of(role, spec, read_recording(spec.run))


BACKEND = Backend(spec=ReplaySpec, open=open_replay, virtual_time=True, tokenizer=_tokenizer_of)
