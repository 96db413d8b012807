"""What `speculate: auto` has learnt in earlier runs: a plan and the option `speculate_from` enter, what a run begins with leaves.

The last run on some engines with some loop leaves what it has learnt in a file of the cache folder, named after a digest of both. Who
solves in virtual time begins with nothing unless told otherwise, so that equal simulated runs stay equal.
"""

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from pipeline.errors import InputError, UsageError, boundary
from pipeline.files import new_file
from pipeline.graph.plan import Plan, settings_of
from pipeline.runtime.schedule import ScheduleName
from pipeline.runtime.speculation.modes import Knowledge
from pipeline.store.run_file import FILE, RunFile, SpeculationRecord, host
from pipeline.system.machine import cuda_mps, gpus

TRIALS = ("answer_confident", "answer_stable", "every")
"""What decides in an `until` when a trial answer is asked for."""
CACHE, NOTHING, START = "cache", "nothing", ":start"
"""Values of `speculate_from`, and the end of one that names what a run began with in place of what it had learnt in the end."""


def begun_with(
    plan: Plan, speculate_from: str | None, *, virtual: bool, schedule: ScheduleName = "pipelined", before: SpeculationRecord | None = None
) -> SpeculationRecord | None:
    """What a run of `plan` begins with; None where nothing is decided during it. `before` is the record of the session that it goes on
    from, which holds what another run knew, whatever became of that one.

    Raises `UsageError` where `speculate_from` names a run that knows nothing, or was of other engines, another loop or schedule.
    """
    if plan.direct is None:
        if speculate_from not in (None, CACHE, NOTHING):
            raise UsageError(f"--speculate-from {speculate_from}: this run decides nothing by it; add --set speculate=auto")
        return None
    digest, source = digest_of(plan, schedule, virtual=virtual), speculate_from or (NOTHING if virtual else CACHE)
    if source == NOTHING:
        return SpeculationRecord(digest=digest)
    if source == CACHE:
        return _cached(digest)
    if before is not None and before.digest == digest:
        return structs.replace(before, learnt={})
    folder, at_start = Path(source.removesuffix(START)), source.endswith(START)
    then = RunFile.read(folder)
    had = then.speculation
    if had is None or not (had.begun_with if at_start else had.learnt):
        when = "began with nothing" if at_start and had is not None else "has learnt nothing about speculation"
        raise UsageError(f"--speculate-from {source}: that run {when}; name a finished run with speculate=auto, or use `nothing`")
    if had.digest != digest:
        difference = _difference(_facts(then.plan, then.schedule), _facts(plan, schedule))
        raise UsageError(f"--speculate-from {source}: that run had {difference}; name a run with the same, or use `nothing`")
    with boundary(InputError, f"{folder / FILE}: $.speculation", foreign=msgspec.ValidationError):
        _checked(had.begun_with if at_start else had.learnt)
    named = f"{folder.absolute()}{START if at_start else ''}"
    return SpeculationRecord(digest=digest, begun_from=named, begun_with=had.begun_with if at_start else had.learnt)


def digest_of(plan: Plan, schedule: str = "pipelined", *, virtual: bool) -> str:
    """A digest of all that the speed of speculation depends on: the engines, the stages of the loop, what judges are asked, how often a
    trial answer is asked for, the schedule and, unless time is `virtual`, this machine and how its GPUs are shared: home folders are often
    shared by machines with different ones."""
    facts = _facts(plan, schedule) if virtual else _facts(plan, schedule) | _machine()
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()[:32]


def file_of(digest: str) -> Path:
    """Where the cache keeps what is known about engines and a loop; raises `RuntimeError` where the user has no home folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "speculative-pipeline" / "speculation" / f"{digest}.json"


def knowledge_of(speculation: SpeculationRecord | None) -> Knowledge:
    """What a run begins with, as its controller takes it."""
    known = {} if speculation is None else speculation.begun_with
    return _checked(known) if known else Knowledge()


def with_learnt(speculation: SpeculationRecord | None, learnt: Knowledge | None) -> SpeculationRecord | None:
    """The same at the end of a run that has `learnt` that."""
    if speculation is None or learnt is None:
        return speculation
    return structs.replace(speculation, learnt=msgspec.to_builtins(learnt))


def keep(speculation: SpeculationRecord | None, speculate_from: str | None, *, virtual: bool) -> None:
    """Leave what a run has learnt in the cache, unless it was to begin with nothing, was simulated and not to begin from there, or has not
    seen the target alone. A cache that cannot be written is needed by no run, so that this says nothing."""
    wanted = speculate_from == CACHE if virtual else speculate_from != NOTHING
    if speculation is None or not wanted or not speculation.learnt.get("direct"):
        return
    with suppress(OSError, RuntimeError):
        file_of(speculation.digest).parent.mkdir(parents=True, exist_ok=True)
        with new_file(file_of(speculation.digest)) as draft:
            draft.write_bytes(msgspec.json.encode(speculation.learnt))


def _cached(digest: str) -> SpeculationRecord:
    """What a run begins with from the cache: nothing where it holds no file on that, or one that another version has written or that
    is damaged."""
    try:
        file = file_of(digest)
        raw = msgspec.json.decode(file.read_bytes())
        _checked(raw)
    except (OSError, RuntimeError, msgspec.DecodeError):
        return SpeculationRecord(digest=digest)
    return SpeculationRecord(digest=digest, begun_from=str(file), begun_with=raw)


def _checked(raw: Any) -> Knowledge:
    """Knowledge as a file holds it; raises `msgspec.ValidationError`."""
    return msgspec.convert(raw, Knowledge, strict=False)


def _facts(plan: Plan, schedule: str) -> dict[str, Any]:
    engines = {f"engines.{role}": settings_of(spec) for role, spec in plan.engines.items()}
    stages = {f"stages.{stage.name}": settings_of(stage.spec) for stage in plan.repeated}
    asked = {f"prompts.{name}": msgspec.to_builtins(getattr(plan.prompts, name)) for name in ("choose", "choose_thought", "score")}
    trials = {f"stages.{loop.name}.until": {name: getattr(loop.until, name) for name in TRIALS} for loop in plan.loops if loop.trial}
    return dict(_flat("", engines | stages | asked | trials)) | {"schedule": schedule}


def _machine() -> dict[str, Any]:
    return {"processor": host().processor, "GPUs": sorted(gpu.name for gpu in gpus()), "CUDA MPS": cuda_mps()}


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else key, inner)
    else:
        yield name, value


def _difference(old: dict[str, Any], new: dict[str, Any]) -> str:
    """What the facts of one run have that those of the other have not, as a clause after "had"."""
    name = next((each for each in sorted(old.keys() | new.keys()) if old.get(each) != new.get(each)), None)
    if name is None:
        return "another machine, or another way of sharing its GPUs"
    return f"other engines, another loop or schedule: {name} was {old.get(name)}, is {new.get(name)}"
