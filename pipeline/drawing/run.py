"""A run to draw: a plan and a run folder enter; the plan as the run carried it out and the run's counts leave.

Refuses the run of another graph, and lists differences in params and engines.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct, structs

from pipeline.errors import InputError
from pipeline.graph.plan import Block, LoopNode, Plan, UnknownStage
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

STAGES = """
SELECT stage, count(*) AS calls, count(error_type) AS failed, sum(e2e_latency_s) AS in_flight_s, sum(client_wait_s) AS waiting_s
FROM calls GROUP BY stage"""
ACCEPTED = "SELECT stage, count(*) FROM steps WHERE decision = 'accepted' GROUP BY stage"
REJECTED = """
SELECT verify_stage, count(*) FROM steps
WHERE decision NOT IN ('accepted', 'first_steps') AND verify_stage IS NOT NULL GROUP BY verify_stage"""
GATES = """
SELECT gate, count(*) FROM (SELECT unnest(gate_stage) AS gate, unnest(gate_flagged) AS flagged FROM steps)
WHERE flagged = {flagged} GROUP BY gate"""
STEPS = "SELECT stage, count(*) FROM steps GROUP BY stage"
FIRST_STEPS = "SELECT stage, count(*) FROM steps WHERE decision = 'first_steps' GROUP BY stage"
ENDS = "SELECT stop_reason, count(*) AS chains FROM chains WHERE calls > 0 GROUP BY stop_reason ORDER BY chains DESC, stop_reason"


class StageCounts(Struct, frozen=True):
    """Sums over the calls of one stage, with every attempt counted."""

    stage: str
    calls: int
    failed: int
    in_flight_s: float
    waiting_s: float


class RunCounts(Struct, frozen=True, kw_only=True):
    """Counts of a run, for the drawing of its plan."""

    run: str
    """Its id."""
    chains: int
    """Chains that ended and had a call."""
    stages: dict[str, StageCounts]
    accepted: dict[str, int]
    """Accepted steps, by the stage that judged."""
    rejected: dict[str, int]
    """Verdicts after which another stage wrote the step, by the stage that judged."""
    passed: dict[str, int]
    """Drafts that a gate let pass, by the gate."""
    flagged: dict[str, int]
    """Drafts that it flagged."""
    steps: dict[str, int]
    """Committed steps, by the stage that committed them; a stage that judges commits what it accepts."""
    first_steps: dict[str, int]
    """Those of `steps` that were written without drafts as one of the chain's first, by stage."""
    stop_reasons: dict[str, int]
    """Chains by what ended them, most frequent first."""


def count_run(folder: Path, run: str) -> RunCounts:
    """Count the calls, steps and chains of the run in `folder`; `run` is its id. Raises `InputError`."""
    with Query(folder) as query:
        ends = dict(query.stream(ENDS))
        return RunCounts(
            run=run,
            chains=sum(ends.values()),
            stages={each.stage: each for each in query.rows(STAGES, StageCounts)},
            accepted=dict(query.stream(ACCEPTED)),
            rejected=dict(query.stream(REJECTED)),
            passed=dict(query.stream(GATES.format(flagged=False))),
            flagged=dict(query.stream(GATES.format(flagged=True))),
            steps=dict(query.stream(STEPS)),
            first_steps=dict(query.stream(FIRST_STEPS)),
            stop_reasons=ends,
        )


class RunPlan(Struct, frozen=True, kw_only=True):
    """A plan as a run carried it out."""

    run: str
    """The run's id."""
    plan: Plan
    """The plan with the params of the run."""
    engines: dict[str, str]
    """Backend and model of each role."""
    differences: tuple[str, ...]
    """Params and engines of the run that differ from those of the plan as it is now, each as `NAME VALUE`."""


def plan_of_run(plan: Plan, folder: Path) -> RunPlan:
    """`plan` as the run in `folder` carried it out; raises `InputError` where that is no run, or one of another graph."""
    run = RunFile.read(folder)
    switched = run.plan.name == plan.name and run.plan.speculate != plan.speculate  # which adds stages and leaves out others
    if not switched and (different := _difference(dict(_outline(plan.block)), dict(_outline(run.plan.block)))):
        raise InputError(str(folder), f"is a run of {run.graph_file}, which differs from `{plan.name}`: {different}")
    for stage in run.plan.stages():
        if isinstance(stage.spec, UnknownStage):
            raise InputError(str(folder / "run.json"), f"its stage `{stage.name}` cannot be drawn: {stage.spec.flaw}")
    return RunPlan(
        run=run.run_id,
        plan=structs.replace(run.plan, name=plan.name),
        engines=engines_of(run.plan),
        differences=tuple(_differences(plan, run.plan)),
    )


def engines_of(plan: Plan) -> dict[str, str]:
    """Backend and model of each role; target and draft come first, so that they have the same colours on every drawing."""
    roles = sorted(plan.engines, key=lambda role: (role != "target", role != "draft"))
    return {role: " ".join(filter(None, (plan.engines[role].backend, getattr(plan.engines[role], "model", None)))) for role in roles}


def _outline(block: Block, inside: str = "") -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every stage and loop by its path, with its kind, role and condition."""
    for level in block.levels:
        for node in level:
            path = inside + node.name
            when = f"{node.condition.stage} {node.condition.word}" if node.condition else ""
            if isinstance(node, LoopNode):
                yield path, ("repeat", "", when)
                yield from _outline(node.body, f"{path}.")
                if node.direct is not None:
                    yield from _outline(Block(((node.direct.response, node.direct.boundary),)), f"{path}.")
            else:
                yield path, (node.spec.kind, str(node.spec.role or ""), when)


def _difference(ours: Mapping[str, tuple[str, ...]], theirs: Mapping[str, tuple[str, ...]]) -> str | None:
    """The first difference between two outlines, as a clause about the second; None where they are equal."""
    if missing := [name for name in ours if name not in theirs]:
        return f"it has no stage `{missing[0]}`"
    if more := [name for name in theirs if name not in ours]:
        return f"it has a stage `{more[0]}`"
    for name, (kind, role, _) in ours.items():
        if theirs[name][:2] != (kind, role):
            return f"its stage `{name}` is a `{theirs[name][0]}` by `{theirs[name][1]}`, not a `{kind}` by `{role}`"
    return None if list(ours.items()) == list(theirs.items()) else "its stages are in another order"


def _differences(plan: Plan, carried_out: Plan) -> Iterator[str]:
    ours, theirs = plan.params, carried_out.params
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            yield f"{name} {theirs.get(name, 'unset')}"
    engines = engines_of(carried_out)
    for role, engine in engines_of(plan).items():
        if role in engines and engines[role] != engine:
            yield f"{role} {engines[role]}"
