"""What was decided about a run before its first chain, as its summary tells it: `run.json` enters, fields of a `Summary` leave. Pure."""

from collections.abc import Mapping
from typing import Any

from pipeline.analysis.headline.adapters import unused_adapters
from pipeline.analysis.resources import EngineFacts, answers, devices_of, engine_facts
from pipeline.analysis.simulated import of_engines
from pipeline.store.run_file import RunFile


def decided(run: RunFile) -> dict[str, Any]:
    """The fields of a `Summary` that `run.json` alone tells; none where it is not there."""
    if not run.plan.engines:
        return {}
    facts, plan = engine_facts(run), run.plan
    return {
        "graph": plan.name,
        "models": plan.models,
        "has_toy_models": plan.has_toy_models,
        "drafters": tuple(dict.fromkeys(plan.drafters)),
        "planned": run.input.rows * run.samples,
        "samples_planned": run.samples,
        "schedule": run.schedule or None,
        "resumable": not run.options.get("in_memory"),
        "startup_s": run.startup_s,
        "simulated": run.virtual_time,
        "simulator": of_engines(facts.values()) if run.virtual_time else "",
        "answers": answers(facts.values()),
        "unused_adapters": tuple(unused_adapters(plan)),
        "take_turns": take_turns(run, facts),
    }


def take_turns(run: RunFile, facts: Mapping[str, EngineFacts]) -> tuple[str, ...]:
    """The roles of the engines of one GPU that compute there in turns; of several such GPUs those of the first."""
    sharing: dict[str, list[str]] = {}
    for role, spec in run.plan.engines.items():
        device = getattr(spec, "device", None)
        in_turn = run.host.cuda_mps is False if facts[role].accelerators else getattr(device, "sharing", "") == "time_slices"
        for name in devices_of(role, facts[role]) if in_turn else ():
            sharing.setdefault(name, []).append(role)
    return next((tuple(roles) for roles in sharing.values() if len(roles) > 1), ())
