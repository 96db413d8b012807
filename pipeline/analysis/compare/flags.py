"""What to know before a difference between two runs is believed. Pure."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from pipeline.analysis.compare.runs import RunTable


class Flag(Struct, frozen=True):
    """Why two runs may differ for another reason than their systems."""

    run: str
    what: str


def flags_of(run: RunTable, base: RunTable) -> list[Flag]:
    """What to know before a difference between `run` and `base` is believed."""
    said = []
    if run.status != "finished":
        said.append(f"it is {run.status}: only finished chains count")
    if run.failed:
        said.append(f"{run.failed} chains failed or were cancelled and are in no figure")
    for name in ("seed", "samples", "batch_size", "schedule"):
        ours, theirs = getattr(run, name), getattr(base, name)
        if ours != theirs:
            said.append(f"{name} is {ours}, the baseline's {theirs}")
    if run.simulated != base.simulated:
        said.append("one of the two is simulated, the other measured")
    elif run.host != base.host and not run.simulated:
        said.append("it ran on another machine than the baseline")
    if set(run.problem_ids) != set(base.problem_ids):
        common = len(set(run.problem_ids) & set(base.problem_ids))
        said.append(f"of its {len(run.problem_ids)} problems {common} are the baseline's; differences are over these")
    said += _different("", run.params, base.params, ("token_budget", "temperature"))
    said += _different("its ", run.models, base.models)
    said += _different("the backend of its ", _backends(run), _backends(base))
    if run.resources.kind != base.resources.kind or (run.models.keys() == base.models.keys() and run.resources != base.resources):
        said.append(f"it had {run.resources.label}, the baseline {base.resources.label}")
    if run.quality and base.quality and run.quality.model != base.quality.model:
        said.append(f"its steps were scored by {run.quality.model}, the baseline's by {base.quality.model}")
    return [Flag(run.name, what) for what in said]


def _different(article: str, ours: Mapping[str, object], theirs: Mapping[str, object], names: Sequence[str] | None = None) -> list[str]:
    both = [name for name in names or sorted(ours) if name in ours and name in theirs]
    return [f"{article}{name} is {ours[name]}, the baseline's {theirs[name]}" for name in both if ours[name] != theirs[name]]


def _backends(run: RunTable) -> dict[str, str]:
    return {role: str(spec.get("backend")) for role, spec in run.engines.items()}
