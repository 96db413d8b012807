"""What a run folder says about itself to who replays it: its engines, their costs, its seed and its input.

`run.json` and an engines file enter, specs leave; no call is read here and nothing is opened.
"""

import math
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
from pipeline.trace.read import read_card

PREFIX = "replay:"
"""Before a run folder, in the place of an engines file."""
CALIBRATION = "calibration.yaml"
"""In a run folder: simulated engines that were fitted to it."""
OLD = "was recorded by an earlier version, which did not keep what a replay needs; record it again"


class RecordedInput(Struct, frozen=True, kw_only=True):
    """The problems that a run was given."""

    file: str
    sha256: str
    rows: int
    columns: dict[str, str] = {}


class RecordedEngine(Struct, frozen=True, kw_only=True):
    """What every engine of a recorded run says."""

    backend: str
    model: str = ""
    tokenizer: str | None = None
    run: str = ""
    max_in_flight: int
    timeout_s: float
    max_retries: int


class RecordedFacts(Struct, frozen=True, kw_only=True):
    """What an engine had found out about itself."""

    max_model_len: int
    vocab_size: int


class Recording(Struct, frozen=True, kw_only=True):
    """The part of a `run.json` that matters."""

    engines: dict[str, dict[str, Any]]
    engine_facts: dict[str, dict[str, Any]] = {}
    seed: int
    samples: int
    input: RecordedInput

    def engine(self, role: str, run: str) -> RecordedEngine:
        """The engine that played `role` in `run`; raises `GraphError` where none did, or one that only replayed itself."""
        if role not in self.engines:
            raise GraphError(f"engine {role!r}", f"the run {run} had no such engine; {did_you_mean(role, self.engines)}")
        with boundary(InputError, f"{run}/run.json: $.engines.{role}", foreign=msgspec.ValidationError):
            found = msgspec.convert(self.engines[role], RecordedEngine)
        if found.backend == "replay":
            raise GraphError(f"engine {role!r}", f"the run {run} is a replay itself; replay what it replays: {PREFIX}{found.run}")
        return found

    def facts(self, role: str, run: str) -> RecordedFacts:
        """Limits of that engine."""
        try:
            return msgspec.convert(self.engine_facts.get(role), RecordedFacts)
        except msgspec.ValidationError as error:
            raise InputError(run, OLD) from error


def read_recording(run: str) -> Recording:
    """What the `run.json` in the folder says; raises `InputError`."""
    return read_card(Path(run), Recording)


def replayed(engines: Path | None) -> Path | None:
    """The run folder in `replay:RUN`, absolute; None for the name of a file."""
    name = str(engines or "")
    return Path(name.removeprefix(PREFIX)).absolute() if name.startswith(PREFIX) else None


def bindings(engines: Path | None) -> Path | Mapping[str, Any] | None:
    """What `--engines` names: a file as it stands, of `replay:RUN` an engine for each of the run's."""
    run = replayed(engines)
    if run is None:
        return engines
    return {role: {"backend": "replay", "run": str(run)} for role in read_recording(str(run)).engines}


def as_recorded(role: str, spec: ReplaySpec) -> ReplaySpec:
    """`spec` with all that it leaves open decided. Raises `GraphError` or `InputError` where it cannot be."""
    recording = read_recording(spec.run)
    then = recording.engine(role, spec.run)
    recording.facts(role, spec.run)
    costs, costs_from = _costs(role, spec, then)
    return structs.replace(
        spec,
        costs=costs,
        costs_from=costs_from,
        model=spec.model or then.model or role,
        max_in_flight=spec.max_in_flight or then.max_in_flight,
        timeout_s=spec.timeout_s or then.timeout_s,
        max_retries=then.max_retries if spec.max_retries < 0 else spec.max_retries,
    )


def _costs(role: str, spec: ReplaySpec, then: RecordedEngine) -> tuple[Literal["recorded", "simulated"], str | None]:
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
    if spec.costs_from is None:
        with boundary(InputError, f"{spec.run}/run.json: $.engines.{role}", foreign=msgspec.ValidationError):
            found = msgspec.convert(_endless(recording.engines[role]), SimSpec)
    else:
        found = _of_file(role, Path(spec.costs_from))
    return structs.replace(found, faults=SimFaultsSpec(), max_model_len=recording.facts(role, spec.run).max_model_len)


def _of_file(role: str, path: Path) -> SimSpec:
    engines = load_engines(path, {"sim": SimSpec})
    if role not in engines:
        raise GraphError(str(path), f"holds no engine `{role}` whose costs could count; {did_you_mean(role, engines)}")
    found = engines[role]
    assert isinstance(found, SimSpec)
    return found


def _endless(engine: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: a rate without a bound is null in `run.json`."""
    device = engine.get("device")
    rates = {name: math.inf if value is None else value for name, value in device.items()} if isinstance(device, dict) else device
    return {**engine, "device": rates}


def tokenizer_of(role: str, spec: ReplaySpec, engine: RecordedEngine) -> Tokenizer:
    """That of the recorded `engine`: of a simulated one its own, else its model's, of which no weights are loaded."""
    if engine.backend == "sim":
        return SimTokenizer()
    name = engine.tokenizer or engine.model
    if not name:
        what = f"the run {spec.run} does not say which tokenizer its engine of the backend {engine.backend!r} had"
        raise GraphError(f"engine {role!r}", what)
    with boundary(GraphError, f"engine {role!r}", foreign=GraphError):
        return HFTokenizer(resolve(role, name), trust_remote_code=spec.trust_remote_code)
