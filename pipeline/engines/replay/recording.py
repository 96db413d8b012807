"""The description of a recorded run, before any of its calls is read: its engines, their limits, costs and tokenizers.

`run.json` and an engines file enter, specs leave; no call is read here and nothing is opened.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs

from pipeline.engine import Tokenizer
from pipeline.engines.models import resolve
from pipeline.engines.replay.spec import ReplaySpec
from pipeline.engines.sim.spec import SimSpec
from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, InputError, boundary, did_you_mean
from pipeline.graph.loader import PARAMS, load_engines
from pipeline.graph.plan import UnknownEngine, settings_of
from pipeline.graph.prompt_files import PUBLISHED
from pipeline.graph.spec import EngineSpec
from pipeline.store.run_file import RunFile

PREFIX = "replay:"
"""Marks a run folder where the name of an engines file is expected: `replay:RUN`."""
CALIBRATION = "calibration.yaml"
"""The file in a run folder with simulated engines that were fitted to the run."""


class RecordedLimits(Struct, frozen=True, kw_only=True):
    """The context length of a recorded engine in tokens, and its number of token ids."""

    max_model_len: int
    vocab_size: int


class Recording(Struct, frozen=True):
    """A recorded run, as its `run.json` describes it."""

    folder: str
    """The run folder."""
    file: RunFile
    """Its `run.json`."""

    def engine(self, role: str) -> EngineSpec:
        """The spec of the recorded engine `role`; raises `GraphError` where there was none, or it was a replay itself."""
        engines = self.file.plan.engines
        if role not in engines:
            raise GraphError(f"engine {role!r}", f"the run {self.folder} had no such engine; {did_you_mean(role, engines)}")
        found = engines[role]
        if isinstance(found, ReplaySpec):
            what = f"the run {self.folder} is itself a replay; replay the original run: {PREFIX}{found.run}"
            raise GraphError(f"engine {role!r}", what)
        return found

    def limits(self, role: str) -> RecordedLimits:
        """The limits of the recorded engine `role`; raises `InputError` where `run.json` does not state them."""
        with boundary(InputError, f"{self.folder}/run.json: $.engine_facts.{role}", foreign=msgspec.ValidationError):
            return msgspec.convert(self.file.engine_facts.get(role), RecordedLimits)


def read_recording(run: str) -> Recording:
    """The recorded run in the folder `run`; raises `InputError` where its `run.json` cannot be read."""
    return Recording(run, RunFile.read(Path(run)))


def replayed(engines: Path | None) -> Path | None:
    """The run folder in `replay:RUN`, absolute; None for the name of a file."""
    name = str(engines or "")
    return Path(name.removeprefix(PREFIX)).absolute() if name.startswith(PREFIX) else None


def bindings(engines: Path | None) -> Path | Mapping[str, Any] | None:
    """The engines that the option `--engines` names: a file's path as it is, and for `replay:RUN` a mapping with a replay engine for
    each engine of the run, and with the prompts for its graph that its models were given for `auto`."""
    run = replayed(engines)
    if run is None:
        return engines
    plan = read_recording(str(run)).file.plan
    found: dict[str, Any] = {role: {"backend": "replay", "run": str(run)} for role in plan.engines}
    return found | ({PARAMS: {plan.name: {"prompts": PUBLISHED}}} if plan.params.get("prompts") == PUBLISHED else {})


def as_recorded(role: str, spec: ReplaySpec) -> ReplaySpec:
    """`spec` with the values of the recorded run for all that it leaves open. Raises `GraphError` or `InputError` where the run does
    not have them."""
    recording = read_recording(spec.run)
    then = recording.engine(role)
    recording.limits(role)
    costs, costs_from = _costs(role, spec, then)
    return structs.replace(
        spec,
        costs=costs,
        costs_from=costs_from,
        model=spec.model or recording.file.model(role),
        max_in_flight=spec.max_in_flight or then.max_in_flight,
        timeout_s=spec.timeout_s or then.timeout_s,
        max_retries=then.max_retries if spec.max_retries < 0 else spec.max_retries,
    )


def _costs(role: str, spec: ReplaySpec, then: EngineSpec) -> tuple[Literal["recorded", "simulated"], str | None]:
    """The decided `costs` and `costs_from` of a spec; `then` is the recorded engine."""
    fitted = Path(spec.run) / CALIBRATION
    if spec.costs == "recorded":
        if spec.costs_from is not None:
            raise GraphError(f"engine {role!r}", "costs_from names a roofline, but costs is recorded; drop one of the two")
        return "recorded", None
    if spec.costs_from is not None or then.backend == "sim":
        return "simulated", spec.costs_from
    if fitted.is_file():
        return "simulated", str(fitted)
    if spec.costs == "simulated":
        what = f"{spec.run} was not simulated and holds no {CALIBRATION}; set costs_from to a file of simulated engines"
        raise GraphError(f"engine {role!r}", what)
    return "recorded", None


def sim_spec(role: str, spec: ReplaySpec, recording: Recording) -> SimSpec:
    """The simulated engine that says how long calls take where costs are simulated, with the recorded context length."""
    found = recording.engine(role) if spec.costs_from is None else _of_file(role, Path(spec.costs_from))
    if isinstance(found, UnknownEngine):
        raise InputError(f"{spec.run}/run.json: $.engines.{role}", found.flaw)
    assert isinstance(found, SimSpec)
    adapters = tuple(settings_of(recording.engine(role)).get("adapters") or ())
    return structs.replace(found, max_model_len=recording.limits(role).max_model_len, adapters=adapters)


def _of_file(role: str, path: Path) -> SimSpec:
    engines = load_engines(path, {"sim": SimSpec})
    if role not in engines:
        raise GraphError(str(path), f"holds no engine `{role}` to take costs from; {did_you_mean(role, engines)}")
    found = engines[role]
    assert isinstance(found, SimSpec)
    return found


def tokenizer_of(role: str, spec: ReplaySpec, recording: Recording) -> Tokenizer:
    """The tokenizer of the recorded engine `role`; no weights are loaded for it. Raises `GraphError` where it is not known."""
    engine = recording.engine(role)
    if engine.backend == "sim":
        return SimTokenizer()
    settings = settings_of(engine)
    name = settings.get("tokenizer") or settings.get("model")
    if not name:
        what = f"the run {spec.run} does not say which tokenizer its engine of the backend {engine.backend!r} had"
        raise GraphError(f"engine {role!r}", what)
    with boundary(GraphError, f"engine {role!r}", foreign=GraphError):
        return HFTokenizer(
            resolve(role, str(name)),
            trust_remote_code=spec.trust_remote_code,
            template_arguments=settings.get("chat_template_kwargs") or {},
        )
