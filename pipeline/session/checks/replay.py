"""Checks and notices for a run on replayed engines: whether its options match the recorded run, where its times come from, and
how many chains needed text that was not recorded.

Plans, options and fingerprints enter, notices leave; for a plan without replayed engines there are none.
"""

from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from pipeline.data.problems import Fingerprint
from pipeline.engines.replay.recording import CALIBRATION, as_recorded, read_recording
from pipeline.engines.replay.spec import ReplaySpec
from pipeline.errors import GraphError, NeverGenerated, UsageError
from pipeline.graph.plan import Plan, StageNode, settings_of
from pipeline.graph.spec import EngineSpec
from pipeline.session.options import RunOptions
from pipeline.store.run_file import RunFile


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
    for run in dict.fromkeys(spec.run for spec in _replayed(plan).values()):
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


def announcements(plan: Plan) -> list[str]:
    """One notice for each source of the times of replayed calls (the recording, or a roofline), with the roles that use it."""
    costs: dict[str, list[str]] = {}
    for role, spec in _replayed(plan).items():
        if spec.costs == "recorded":
            said = "takes as long as when it was recorded, whatever else is running"
        elif spec.costs_from is None:
            continue
        else:
            fitted = " fitted to it" if Path(spec.costs_from).name == CALIBRATION else ""
            said = f"takes the time predicted by the roofline model{fitted} in {spec.costs_from}"
        costs.setdefault(f"replay of {spec.run}: every call of %s {said}", []).append(role)
    return [sentence.replace("%s", " and ".join(roles), 1) for sentence, roles in costs.items()]


def shortfall(run: RunFile) -> str | None:
    """A notice of how many chains needed text that was never generated, and at which stages; None where none did."""
    missing = run.totals.errors.get(NeverGenerated.__name__)
    if not missing:
        return None
    stages = ", ".join(f"{stage} {count}" for stage, count in sorted(missing.items(), key=lambda item: -item[1]))
    return f"replay: {sum(missing.values())} of {run.totals.chains} chains needed text that was never generated, first at stage {stages}"


def _replayed(plan: Plan) -> dict[str, ReplaySpec]:
    return {role: spec for role, spec in plan.engines.items() if isinstance(spec, ReplaySpec)}


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
