"""Compares runs: tables of runs enter, one `Comparison` leaves.

It holds the figures of each run, and reasons other than their graphs why runs may differ.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from pipeline.analysis.compare.figures import Compared
from pipeline.analysis.compare.rules import differences
from pipeline.analysis.compare.runs import RunTable, data_sets
from pipeline.analysis.quality.option_mass import mass_sentence
from pipeline.errors import UsageError
from pipeline.store.run_file import Host


class Flag(Struct, frozen=True):
    """A reason other than its graph why a run may differ from the baseline."""

    run: str
    """The run's name."""
    what: str
    """The reason as a clause."""


class Comparison(Struct, frozen=True, kw_only=True):
    """The figures of several runs and their differences."""

    baseline: str
    """The baseline's name; with several data sets, the first one's."""
    baselines: dict[str, str]
    """The baseline of each data set, by its name, in the order given: runs are compared over the same data alone."""
    runs: tuple[Compared, ...]
    """In the order given."""
    flags: tuple[Flag, ...]


def compare(runs: Sequence[RunTable], baseline: str | None = None) -> Comparison:
    """Compare `runs` with the run or graph named `baseline`, by default the first run of graph `target`, or else the first that drafts
    nothing, or else the first; with several data sets in each of them.

    Raises `UsageError` when a baseline is not among them or has no problem in common with a run over the same data.
    """
    data, bases = data_sets(runs), _baselines(runs, baseline)
    base_of = {run.name: bases[data[run.name]] for run in runs}
    for run in runs:
        _refuse(run, base_of[run.name])
    return Comparison(
        baseline=next(iter(bases.values())).name,
        baselines={dataset: base.name for dataset, base in bases.items()},
        runs=tuple(Compared(run, base_of[run.name], data[run.name]) for run in runs),
        flags=tuple(flag for run in runs for flag in flags_of(run, base_of[run.name])),
    )


def _baselines(runs: Sequence[RunTable], wanted: str | None) -> dict[str, RunTable]:
    """The baseline of each data set; where `wanted` is a run over one of them, the first run of its graph over each of the others."""
    by_data: dict[str, list[RunTable]] = {}
    for run, dataset in zip(runs, data_sets(runs).values(), strict=True):
        by_data.setdefault(dataset, []).append(run)
    named = next((run for run in runs if wanted in (run.name, *run.pooled)), None)
    if named is None or wanted is None:
        every = [run.name for run in runs]
        return {
            dataset: _baseline(members, wanted, every, f" over {dataset}" if len(by_data) > 1 else "")
            for dataset, members in by_data.items()
        }
    found = {}
    for dataset, members in by_data.items():
        alike = [named] if named in members else [run for run in members if run.graph == named.graph]
        if not alike:
            raise UsageError(
                f"--baseline {wanted}: there is no run of graph {named.graph} over {dataset}; add one, or name a graph run over each"
            )
        found[dataset] = alike[0]
    return found


def _baseline(runs: Sequence[RunTable], wanted: str | None, every: Sequence[str], over: str) -> RunTable:
    """The baseline among the `runs` over one data set; `every` names the runs over all, `over` says which data set where there are more."""
    if wanted is None:
        undrafted = (run for run in runs if not run.drafters)
        return next((run for run in runs if run.graph == "target"), next(undrafted, runs[0]))
    found = [run for run in runs if run.graph == wanted]
    if not found:
        raise UsageError(f"--baseline {wanted}: no such run or graph here{over}; there are {', '.join(every)}")
    if len(found) > 1:
        raise UsageError(f"--baseline {wanted}: {', '.join(run.name for run in found)} are all of that graph{over}; name one of them")
    return found[0]


def _refuse(run: RunTable, base: RunTable) -> None:
    if not set(run.problem_ids) & set(base.problem_ids):
        raise UsageError(f"{run.name} and {base.name} have no finished problem in common")


def flags_of(run: RunTable, base: RunTable) -> list[Flag]:
    """Reasons other than their graphs why `run` may differ from `base`."""
    said = []
    if run.status != "finished":
        said.append(f"it is {run.status}: only finished chains count")
    if run.failed:
        said.append(f"{run.failed} chains failed: they count as wrong and are in no other figure")
    if run.lost:
        said.append("because chains failed, it has no wall time to compare")
    if run.cancelled:
        said.append(f"{run.cancelled} chains were cancelled and are in no figure")
    if run.option_mass and run.option_mass.flagged:
        said.append(mass_sentence(run.option_mass))
    if (seeds := _seeds(run)) != (others := _seeds(base)):
        said.append(f"seed is {seeds}, the baseline's {others}")
    for name in ("samples", "batch_size", "replicas", "schedule", "admission"):
        ours, theirs = getattr(run, name), getattr(base, name)
        if ours != theirs:
            said.append(f"{name} is {ours}, the baseline's {theirs}")
    if run.simulated != base.simulated:
        said.append("one of the two is simulated, the other measured")
    elif not run.simulated:
        said += _other_machine(run.host, base.host)
    if set(run.problem_ids) != set(base.problem_ids):
        common = len(set(run.problem_ids) & set(base.problem_ids))
        said.append(f"{common} of its {len(run.problem_ids)} problems are also the baseline's; differences are over these")
    said += [clause for kind, clause in differences(run.rules, base.rules) if kind != "devices"]  # what the engines stated is below
    ours, theirs = run.resources, base.resources
    if ours.amounts != theirs.amounts or (run.models.keys() == base.models.keys() and ours != theirs):
        said.append(f"it had {ours.label}, the baseline {theirs.label}")
    if run.reward_model and base.reward_model and run.reward_model != base.reward_model:
        said.append(f"its steps were scored by {run.reward_model}, the baseline's by {base.reward_model}")
    return [Flag(run.name, what) for what in said]


def _seeds(run: RunTable) -> str:
    return ", ".join(map(str, run.seeds or (run.seed,)))


def _other_machine(ours: Host, theirs: Host) -> Iterator[str]:
    """Whether it was another machine, or the same one with another number of usable cores."""
    names = ("machine", "processor", "memory_bytes", "system")
    if unlike := [name for name in names if getattr(ours, name) != getattr(theirs, name)]:
        said = ", ".join(f"{_WORDS[name]} {getattr(ours, name)}, the baseline's {getattr(theirs, name)}" for name in unlike)
        yield f"it ran on another machine or system than the baseline: {said}"
    elif ours.cores != theirs.cores:
        yield f"it could use another number of cores: {ours.cores}, the baseline {theirs.cores}"


_WORDS = {"machine": "architecture", "processor": "processor", "memory_bytes": "bytes of memory", "system": "system"}
