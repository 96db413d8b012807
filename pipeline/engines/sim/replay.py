"""The text of recorded runs: a request enters, what the engine of the same role answered to it then leaves.

A request that was never answered is never given an invented answer: it raises `NeverGenerated`. How long an answer takes is the simulated
engine's to say.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from pipeline.engine import Fact, Request, Tokenizer
from pipeline.engines.models import resolve
from pipeline.engines.sim.output import Output
from pipeline.engines.sim.spec import SimSpec
from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, InputError, NeverGenerated, boundary, did_you_mean
from pipeline.graph.files import replayed
from pipeline.graph.load import load_engines
from pipeline.store.query import Query
from pipeline.store.rows import AnsweredCall
from pipeline.store.run_file import RunFile

CALIBRATION = "calibration.yaml"
"""The file in a run folder with simulated engines that were fitted to the run."""


class RecordedCall(AnsweredCall, frozen=True, kw_only=True):
    """One answered call of a recorded run, with what it was asked for."""

    temperature: float
    top_p: float
    max_tokens: int
    seed: int
    choice_count: int
    stop_sequences: tuple[str, ...]
    option_ids: tuple[int, ...]


ANSWERED = f"SELECT {', '.join(RecordedCall.__struct_fields__)} FROM calls WHERE engine = $role AND error_type IS NULL"


class RecordedText:
    """The `TextSource` of what one engine of a recorded run answered, all of which is held in memory."""

    def __init__(self, role: str, run: str) -> None:
        """Raises `InputError` where the run cannot be read, and `GraphError` where it had no such engine."""
        file = RunFile.read(Path(run))
        self.tokenizer, self.vocab_size = recorded_tokenizer(run, file, role), recorded_limit(run, file, role, "vocab_size")
        names = RecordedCall.__struct_fields__
        with Query(Path(run)) as db:
            rows = (dict(zip(names, row, strict=True)) for row in db.stream(ANSWERED, role=role))
            calls = [msgspec.convert(row, RecordedCall) for row in rows]
        self._calls = {(call.request_id, call.prompt_digest): call for call in calls}
        simulated = file.engine_facts.get(role, {}).get("answers") == "simulated"
        self.facts: dict[str, Fact] = {"answers": "simulated" if simulated else "recorded", "replay": run}
        if not any(call.logprob_mean for call in calls):
            self.facts["cannot"] = ("logprobs",)

    def output(self, request: Request, max_model_len: int) -> Output:
        """The part of the recorded answer that `request` gets. Raises `NeverGenerated`."""
        call = self._calls.get((request.request_id, request.digest()))
        if call is None:
            what = "the recorded run answered no such call: the chain took another path, or the graph uses another wording or adapter"
            raise NeverGenerated(what)
        for name, asked in (
            ("temperature", request.temperature),
            ("top_p", request.top_p),
            ("seed", request.seed),
            ("stop_sequences", request.stop),
            ("option_ids", request.option_ids),
        ):
            if getattr(call, name) != asked:
                raise NeverGenerated(f"the call has other `{name}` than the recorded one")
        if request.n > call.choice_count:
            raise NeverGenerated(f"the call asks for {request.n} candidates, but {call.choice_count} were recorded")
        found = output_of(call, request, min(request.max_tokens, max_model_len - len(request.prompt_ids)), self.tokenizer)
        if request.logprobs and any(each.ids and each.confidence is None for each in found.candidates):
            raise NeverGenerated("no log probabilities of this text were recorded")
        return found


def output_of(call: RecordedCall, request: Request, limit: int, tokenizer: Tokenizer) -> Output:
    """The part of the answer in `call` that `request` gets where its candidates may have `limit` tokens. Raises `NeverGenerated` where a
    recorded text was cut before that.

    A candidate depends on the seed and its own number alone (`Request.seed`), and its text on nothing that comes after. So the
    first few of the recorded candidates, and the beginnings of their texts, are what the model would have written.
    """
    candidates = list(call.candidates(tokenizer)[: request.n])
    for place, each in enumerate(candidates):
        if request.max_tokens == call.max_tokens and len(each.ids) <= limit:
            continue
        if each.finish_reason == "length" and len(each.ids) < limit:
            raise NeverGenerated(f"the call allows {request.max_tokens} tokens, but a recorded text was cut at {call.max_tokens}")
        if len(each.ids) + each.ended > limit:
            ids = each.ids[:limit]
            text = tokenizer.decode(ids)
            candidates[place] = structs.replace(each, ids=ids, text=text, finish_reason="length", stop_reason=None, confidence=None)
    return Output(tuple(candidates), call.option_logprobs)


def bindings(engines: Path | Mapping[str, Any] | None) -> Path | Mapping[str, Any] | None:
    """The engines that the option `--engines` names: values and a file's path as they are; for `replay:RUN` the run's simulated
    engines, or those that were fitted to it, which give its answers.

    Raises `InputError` where the run cannot be read, and `GraphError` where nothing says how long calls of its engines take.
    """
    run = replayed(engines) if isinstance(engines, Path) else None
    if run is None:
        return engines
    plan, fitted = RunFile.read(run).plan, run / CALIBRATION
    known = plan.engines | (load_engines(fitted) if fitted.is_file() else {})
    found: dict[str, Any] = {}
    for role in plan.engines:
        if not isinstance(spec := known[role], SimSpec):
            what = f"{run} ran on models and holds no {CALIBRATION}; write one: pipeline calibrate {run} -o {fitted}"
            raise GraphError(f"engine {role!r}", what)
        found[role] = msgspec.to_builtins(structs.replace(spec, replay=str(run)))
    return found


def recorded_limit(run: str | Path, file: RunFile, role: str, name: str) -> int:
    """`max_model_len` or `vocab_size` of the engine `role` of a run; raises `InputError` where its `run.json` does not say it."""
    with boundary(InputError, f"{run}/run.json: $.engine_facts.{role}.{name}", foreign=msgspec.ValidationError):
        return msgspec.convert(file.engine_facts.get(role, {}).get(name), int)


def recorded_tokenizer(run: str, file: RunFile, role: str) -> Tokenizer:
    """The tokenizer of the engine `role` of a run; no weights are loaded for it. Raises `GraphError` where it is not known."""
    engine = file.plan.engines.get(role)
    if engine is None:
        raise GraphError(f"engine {role!r}", f"the run {run} had no such engine; {did_you_mean(role, file.plan.engines)}")
    if isinstance(engine, SimSpec):
        return SimTokenizer() if engine.replay is None else recorded_tokenizer(engine.replay, RunFile.read(Path(engine.replay)), role)
    settings = msgspec.to_builtins(engine)
    name = settings.get("tokenizer") or settings.get("model")
    if not name:
        what = f"the run {run} does not say which tokenizer its engine of the backend {engine.backend!r} had"
        raise GraphError(f"engine {role!r}", what)
    with boundary(GraphError, f"engine {role!r}", foreign=GraphError):
        return HFTokenizer(resolve(role, str(name)), settings.get("chat_template_kwargs") or {})
