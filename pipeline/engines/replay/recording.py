"""What a run folder says about itself to who replays it: its engines, their costs, its seed and its input.

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
from pipeline.engines.sim.spec import SimFaultsSpec, SimSpec
from pipeline.engines.sim.tokenizer import SimTokenizer
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, InputError, boundary, did_you_mean
from pipeline.graph.loader import load_engines
from pipeline.graph.plan import UnknownEngine, settings_of
from pipeline.graph.spec import EngineSpec
from pipeline.trace.run_file import RunFile

PREFIX = "replay:"
"""Before a run folder, in the place of an engines file."""
CALIBRATION = "calibration.yaml"
"""In a run folder: simulated engines that were fitted to it."""
TOO_OLD = "was recorded by an earlier version, which did not keep what a replay needs; record it again"


class RecordedLimits(Struct, frozen=True, kw_only=True):
    """Of a recorded engine, in tokens and ids."""

    max_model_len: int
    vocab_size: int


class Recording(Struct, frozen=True):
    """A recorded run."""

    folder: str
    file: RunFile

    def engine(self, role: str) -> EngineSpec:
        """The engine that played `role`; raises `GraphError` where none did, or one that only replayed itself."""
        engines = self.file.plan.engines
        if role not in engines:
            raise GraphError(f"engine {role!r}", f"the run {self.folder} had no such engine; {did_you_mean(role, engines)}")
        found = engines[role]
        if isinstance(found, ReplaySpec):
            what = f"the run {self.folder} is a replay itself; replay what it replays: {PREFIX}{found.run}"
            raise GraphError(f"engine {role!r}", what)
        return found

    def answers(self, role: str) -> str:
        """What its completions came from, see `Engine.facts`; runs of earlier versions do not state it."""
        stated = self.file.engine_facts.get(role, {}).get("answers")
        return str(stated or ("simulated" if self.engine(role).backend == "sim" else "model"))

    def limits(self, role: str) -> RecordedLimits:
        """Limits of that engine; raises `InputError` where an earlier version did not keep them."""
        try:
            return msgspec.convert(self.file.engine_facts.get(role), RecordedLimits)
        except msgspec.ValidationError as error:
            raise InputError(self.folder, TOO_OLD) from error


def read_recording(run: str) -> Recording:
    """What the `run.json` in the folder says; raises `InputError`."""
    return Recording(run, RunFile.read(Path(run)))


def replayed(engines: Path | None) -> Path | None:
    """The run folder in `replay:RUN`, absolute; None for the name of a file."""
    name = str(engines or "")
    return Path(name.removeprefix(PREFIX)).absolute() if name.startswith(PREFIX) else None


def bindings(engines: Path | None) -> Path | Mapping[str, Any] | None:
    """What `--engines` names: a file as it stands, of `replay:RUN` an engine for each of the run's."""
    run = replayed(engines)
    if run is None:
        return engines
    return {role: {"backend": "replay", "run": str(run)} for role in read_recording(str(run)).file.plan.engines}


def as_recorded(role: str, spec: ReplaySpec) -> ReplaySpec:
    """`spec` with all that it leaves open decided. Raises `GraphError` or `InputError` where it cannot be."""
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
    """The roofline of an engine whose costs are simulated. It does not fail, and its context is the recorded one."""
    found = recording.engine(role) if spec.costs_from is None else _of_file(role, Path(spec.costs_from))
    if isinstance(found, UnknownEngine):
        raise InputError(f"{spec.run}/run.json: $.engines.{role}", found.flaw)
    assert isinstance(found, SimSpec)
    return structs.replace(found, faults=SimFaultsSpec(), max_model_len=recording.limits(role).max_model_len)


def _of_file(role: str, path: Path) -> SimSpec:
    engines = load_engines(path, {"sim": SimSpec})
    if role not in engines:
        raise GraphError(str(path), f"holds no engine `{role}` whose costs could count; {did_you_mean(role, engines)}")
    found = engines[role]
    assert isinstance(found, SimSpec)
    return found


def tokenizer_of(role: str, spec: ReplaySpec, recording: Recording) -> Tokenizer:
    """That of the recorded engine: of a simulated one its own, else its model's, of which no weights are loaded."""
    engine = recording.engine(role)
    if engine.backend == "sim":
        return SimTokenizer()
    settings = settings_of(engine)
    name = settings.get("tokenizer") or settings.get("model")
    if not name:
        what = f"the run {spec.run} does not say which tokenizer its engine of the backend {engine.backend!r} had"
        raise GraphError(f"engine {role!r}", what)
    with boundary(GraphError, f"engine {role!r}", foreign=GraphError):
        return HFTokenizer(resolve(role, str(name)), trust_remote_code=spec.trust_remote_code)
