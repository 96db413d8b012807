"""Checks of a run before an engine starts: its options, plan and input enter; `UsageError` is raised for what does not fit together."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from pipeline.data.problems import Fingerprint
from pipeline.engines.replay.recording import as_recorded, read_recording
from pipeline.engines.replay.spec import ReplaySpec
from pipeline.errors import GraphError, UsageError
from pipeline.graph.plan import Plan, StageNode, settings_of
from pipeline.graph.spec import EngineSpec
from pipeline.runtime.admission.order import InputOrder, IsOver, LongestFirst, StartOrder
from pipeline.session.options import ABOUT, LONGEST, MAY_DRIFT, RunOptions
from pipeline.store.events import UNFINISHED
from pipeline.store.read import read_batches
from pipeline.store.run_file import RunFile

Thoughts = Mapping[str, Sequence[int]]
"""Tokens of the finished thoughts of an earlier run, by `problem_id`."""
_LOADED = ("vllm", "torch")
"""Backends whose engines were chosen for the GPUs of this machine."""


def check_drift(folder: Path, old: RunFile, new: RunFile, allowed: Sequence[str]) -> None:
    """Raise `UsageError` that names everything in which `new` differs from `old`, except differences of the `allowed` names."""
    as_read = RunFile.decode(msgspec.json.decode(new.encode()))
    found = {name: list(differences) for name, differences in drift(old, as_read).items()}
    refused = [each for name, differences in found.items() if name not in allowed for each in differences]
    if not refused:
        return
    may = [name for name, differences in found.items() if differences and name in MAY_DRIFT and name not in allowed]
    remedy = f"add {' '.join(f'--allow-drift {name}' for name in may)}, or start a new run" if may else "start a new run"
    raise UsageError(f"{folder}: cannot be resumed: {'; '.join(refused)}; {remedy}")


def drift(old: RunFile, new: RunFile) -> dict[str, Iterator[str]]:
    """Differences between two runs, as clauses, by the name under which they may be allowed or are refused."""
    same_params = old.plan.params == new.plan.params
    same_graph = (old.plan.block, old.plan.prompts) == (new.plan.block, new.plan.prompts)
    own = (name for name, known in ABOUT.items() if known.drift is not None)
    return {
        # A bundled graph may have got a param since; where stages and prompts are the same that makes no difference.
        "params": iter(()) if same_graph else _changes("param ", old.plan.params, new.plan.params),
        "graph": iter(["the graph has changed"] if same_params and not same_graph else []),
        "model": _model_changes(old.engines, new.engines),
        "engines": _engine_changes(old.engines, new.engines),
        "input": _changes("input ", _input(old), _input(new)),
        **{name: _changes("", *({name: side.options.get(name)} for side in (old, new))) for name in own},
    }


def _input(run: RunFile) -> dict[str, Any]:
    return {"sha256": run.input.sha256, "columns": run.input.columns, "sample": run.input.sample}


def _model_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Changed models, which are always refused: recorded token ids would mean another text."""
    for role in old.keys() & new.keys():
        yield from _changes(f"engines.{role}.", *({"model": side[role].get("model")} for side in (old, new)))


def _engine_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for role in sorted(old.keys() | new.keys()):
        sides = ({name: value for name, value in side.get(role, {}).items() if name != "model"} for side in (old, new))
        yield from _changes(f"engines.{role}.", *sides)


def _changes(article: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield f"{article}{name} is {new.get(name)}, was {old.get(name)}"


def resolved(plan: Plan) -> Plan:
    """The plan with the fields of its replayed engines filled in from their recorded runs. Raises `UsageError` or `GraphError`, also for
    an adapter that the recorded engine did not have."""
    for stage in plan.stages():
        spec = plan.engines.get(stage.spec.role or "")
        if isinstance(spec, ReplaySpec) and stage.spec.adapter is not None:
            _check_adapter(stage, spec)
    engines: dict[str, EngineSpec] = {
        role: as_recorded(role, spec) if isinstance(spec, ReplaySpec) else spec for role, spec in plan.engines.items()
    }
    return structs.replace(plan, engines=engines)


def check_replay(plan: Plan, options: RunOptions, fingerprint: Fingerprint) -> None:
    """Raise `UsageError` where seed, columns, problems, samples or limit ask for what the recorded run was not asked."""
    for run in dict.fromkeys(spec.run for spec in replayed_engines(plan).values()):
        if needed := next(needs(read_recording(run).file, options, fingerprint), None):
            raise UsageError(f"replay of {run} needs {needed}")


def _check_adapter(stage: StageNode, spec: ReplaySpec) -> None:
    role, adapter = str(stage.spec.role), stage.spec.adapter
    known = tuple(settings_of(read_recording(spec.run).engine(role)).get("adapters") or ())
    if adapter not in known:
        there = f"it had {', '.join(map(repr, known))}" if known else "it had none"
        raise GraphError(
            f"stage `{stage.name}`", f"asks for the adapter {adapter!r} of `{role}`, which run {spec.run} did not have; {there}"
        )


def needs(recording: RunFile, options: RunOptions, fingerprint: Fingerprint) -> Iterator[str]:
    """What a run needs so that it asks for nothing but what the recorded run was asked, as clauses."""
    then = recording.input
    if options.seed != recording.seed:
        yield f"--seed {recording.seed}"
    if options.columns != then.columns:
        columns = " ".join(f"--column {ours}={theirs}" for ours, theirs in then.columns.items())
        yield columns or f"no --column: it was recorded without {', '.join(options.columns)}"
    if fingerprint.sha256 != then.sha256:
        yield f"the recorded problems, {then.file} (SHA-256 {then.sha256[:12]}...); {options.input} has different ones"
    if options.samples > recording.samples:
        yield f"--samples {recording.samples} or less"
    asked = options.part
    if then.shard is not None and asked.shard != then.shard:
        yield f"--shard {then.shard}"
    if then.sample is not None and not (asked.sample is not None and then.sample.holds(asked.sample)):
        yield f"--random {then.sample}"
    elif then.limit is not None and asked.sample is not None:
        yield f"--limit {then.rows} or less, and no --random"
    elif fingerprint.rows > then.rows:
        yield f"--limit {then.rows} or less"


def replayed_engines(plan: Plan) -> dict[str, ReplaySpec]:
    """The replayed engines of a plan, by role."""
    return {role: spec for role, spec in plan.engines.items() if isinstance(spec, ReplaySpec)}


def earlier_thoughts(order: str) -> Thoughts:
    """The thoughts of the run that `order` names, empty where it names none; raises `UsageError` for what is no order and where the run has
    none, `InputError` where its chains cannot be read."""
    word, colon, run = order.partition(":")
    if word not in ("input", LONGEST) or bool(colon) != bool(run) or (run and word != LONGEST):
        raise UsageError(f"--order {order}: expected input, {LONGEST}, or {LONGEST}:RUN with the folder of an earlier run")
    found: dict[str, list[int]] = {}
    if not run:
        return found
    for batch in read_batches(Path(run), "chains", ["problem_id", "stop_reason", "thought_tokens"]):
        for row in batch.to_pylist():
            if row["stop_reason"] not in UNFINISHED:
                found.setdefault(row["problem_id"], []).append(row["thought_tokens"])
    if not found:
        raise UsageError(f"--order {order}: there is no finished chain in {run}; name the folder of a run that has some")
    return found


def start_order(order: str, samples: int, is_over: IsOver, earlier: Thoughts) -> StartOrder:
    """What decides which chain begins next; `earlier` are the `earlier_thoughts` of `order`."""
    return InputOrder(samples, is_over) if order == "input" else LongestFirst(samples, is_over, earlier)


def check_replicas(options: RunOptions) -> None:
    """Raise `UsageError` if options need all chains in one process, or engines on this machine."""
    if options.schedule == "lockstep":
        raise UsageError("--schedule lockstep cannot be combined with --cluster: it synchronises all chains in one process; use pipelined")
    if any(fields.get("backend") in _LOADED for fields in options.planned_engines.values()):
        what = "chooses engines for the GPUs of this machine, but replicas run on others"
        write = "pipeline doctor GRAPH --as 4xH100-80GB --model ... -o engines.yaml"
        raise UsageError(f"--model: {what}; write an engines file with `{write}` and pass it with --engines")
