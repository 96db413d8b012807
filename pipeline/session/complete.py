"""A compiled plan made whole: what its engines take from recorded runs and files is filled in, and what of it does not suit the graph is
refused, so that a run, `pipeline doctor` and `pipeline graph check` find the same. No engine is opened.
"""

from collections.abc import Mapping
from pathlib import Path

from msgspec import structs

from pipeline.engines.replay.calls import measured_in
from pipeline.engines.replay.engine import cannot_of
from pipeline.engines.replay.recording import as_recorded, read_recording, sim_spec
from pipeline.engines.replay.spec import ReplaySpec
from pipeline.engines.sim.device import devices_of
from pipeline.engines.sim.recorded_lengths import with_lengths
from pipeline.engines.sim.spec import SimSpec
from pipeline.errors import GraphError
from pipeline.graph.needs import check_needs, unmet_needs
from pipeline.graph.plan import Plan, StageNode, settings_of
from pipeline.graph.spec import EngineSpec


def completed(plan: Plan) -> Plan:
    """A plan with all that its engines take from recorded runs.

    Raises `GraphError` also for what a stage needs and a recorded engine did not have, such as an adapter, and for simulated engines that
    disagree on their device or on the number of steps of a thought.
    """
    for stage in plan.stages():
        engine = plan.engines.get(stage.spec.role or "")
        if isinstance(engine, ReplaySpec) and stage.spec.adapter is not None:
            _check_adapter(stage, engine)
    plan = structs.replace(plan, engines={role: _filled(role, engine) for role, engine in plan.engines.items()})
    simulated = {role: engine for role, engine in plan.engines.items() if isinstance(engine, SimSpec)}
    _check_steps(simulated)
    devices_of(simulated)
    _check_recorded({role: engine for role, engine in plan.engines.items() if isinstance(engine, ReplaySpec)}, plan)
    return plan


def _filled(role: str, engine: EngineSpec) -> EngineSpec:
    """A spec with the values, or the lengths, of its recorded run."""
    if isinstance(engine, ReplaySpec):
        return as_recorded(role, engine)
    return with_lengths(role, engine) if isinstance(engine, SimSpec) else engine


def _check_adapter(stage: StageNode, engine: ReplaySpec) -> None:
    role, adapter = str(stage.spec.role), stage.spec.adapter
    known = tuple(settings_of(read_recording(engine.run).engine(role)).get("adapters") or ())
    if adapter not in known:
        there = f"it had {', '.join(map(repr, known))}" if known else "it had none"
        what = f"asks for the adapter {adapter!r} of `{role}`, which run {engine.run} did not have; {there}"
        raise GraphError(f"stage `{stage.name}`", what)


def _check_recorded(engines: Mapping[str, ReplaySpec], plan: Plan) -> None:
    """Raise the `GraphError` of what stages need and the recorded `engines` cannot do, and of the simulated devices that these run on."""
    recordings = {role: read_recording(engine.run) for role, engine in engines.items()}
    devices_of({role: sim_spec(role, engine, recordings[role]) for role, engine in engines.items() if engine.costs == "simulated"})
    measuring = {each.role for each in unmet_needs(plan, dict.fromkeys(engines, ("logprobs",)))}
    measured = {run: measured_in(Path(run)) for run in {engines[role].run for role in measuring}}
    check_needs(
        plan,
        {
            role: cannot_of(role, recording, measured=role not in measuring or role in measured[engines[role].run])
            for role, recording in recordings.items()
        },
    )


def _check_steps(engines: Mapping[str, SimSpec]) -> None:
    """Raise `GraphError` where lengths are measured ones and two engines have other numbers of steps."""
    first = next((role for role, spec in engines.items() if spec.text.measured), None)
    for role, spec in engines.items():
        if first is not None and spec.text.distribution("steps") != engines[first].text.distribution("steps"):
            what = f"its thoughts differ in numbers of steps from those of {role!r}, which continues them"
            raise GraphError(f"engine {first!r}: text", f"{what}; give both the same `preset`, or the `lengths` of the same run")
