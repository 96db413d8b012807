"""Whether a run uses what was trained for it, and whether any draft was accepted: notices before a run, and after it."""

from collections.abc import Iterator

from pipeline.graph.plan import Plan
from pipeline.store.run_file import RunFile

_PARAM = "adapter"
"""The param of bundled graphs that names the adapter of the verifying stage."""


def unused_adapters(plan: Plan) -> Iterator[str]:
    """A notice for each engine with adapters that no stage of `plan` names."""
    for role, spec in plan.engines.items():
        names = spec.adapter_names or ()
        stages = [node.spec for node in plan.stages() if node.spec.role == role]
        if not names or any(stage.adapter is not None for stage in stages):
            continue
        known = ", ".join(f"`{name}`" for name in names)
        first = next(iter(names))
        remedy = f"`--set {_PARAM}={first}`" if _PARAM in plan.params else f"`adapter: {first}` on a stage of the graph"
        yield f"engine {role!r} has an adapter, {known}, that no stage uses; to use it: {remedy}"


def used_adapters(plan: Plan) -> Iterator[str]:
    """A notice for each stage of `plan` that uses an adapter."""
    for node in plan.stages():
        if node.spec.adapter is not None:
            yield f"stage {node.name} uses the adapter `{node.spec.adapter}` of engine {node.spec.role!r}"


def rejections(run: RunFile) -> str | None:
    """A notice that every verdict of a run rejected all candidates; None if one did not, or if there was none."""
    decisions = run.totals.decisions
    count, judges = decisions.get("fallback", 0), [node for node in run.plan.stages() if node.spec.judges and node.spec.may_reject]
    if not count or not judges or decisions.get("accepted") or decisions.get("unverified"):
        return None
    unused = next(unused_adapters(run.plan), "no draft was used: was the verifier trained to choose, and does it fit the drafts?")
    return f"all candidates were rejected, 100 % of {count:,} verdicts at stage {judges[0].name}; {unused}"
