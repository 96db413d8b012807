"""Runs side by side: what each comes to, how they differ, and whether they may be compared at all. Pure: tables of runs enter."""

from collections.abc import Sequence

from msgspec import Struct

from pipeline.analysis.compare.differences import Difference, differ
from pipeline.analysis.compare.figures import Compared, figures
from pipeline.analysis.compare.flags import Flag, flags_of
from pipeline.analysis.compare.groups import Group, grouped
from pipeline.analysis.compare.runs import RunTable
from pipeline.errors import UsageError


class Comparison(Struct, frozen=True, kw_only=True):
    """Runs in the order given, the baseline's name, runs that differ in one thing alone, and what stands between them."""

    baseline: str
    runs: tuple[Compared, ...]
    groups: tuple[Group, ...]
    differences: dict[str, tuple[Difference, ...]]
    """Of each run of a group: over the group's first, and over runs of the baseline's graph at the same value."""
    flags: tuple[Flag, ...]


def compare(runs: Sequence[RunTable], baseline: str | None = None) -> Comparison:
    """Compare `runs` with the run or graph named `baseline`, by default the first run of graph `target`, or else the first run.

    Raises `UsageError` when a baseline is not among them or when runs solve different data.
    """
    base = _baseline(runs, baseline)
    _refuse(runs, base)
    groups = grouped(runs)
    tables = {run.name: run for run in runs}
    pairs = {run: sorted({over for group in groups for over in group.others(run, base.graph)}) for run in tables}
    return Comparison(
        baseline=base.name,
        runs=tuple(figures(run, base) for run in runs),
        groups=groups,
        differences={run: tuple(differ(tables[run], tables[over]) for over in others) for run, others in pairs.items() if others},
        flags=tuple(flag for run in runs for flag in flags_of(run, base)),
    )


def _baseline(runs: Sequence[RunTable], wanted: str | None) -> RunTable:
    if wanted is None:
        return next((run for run in runs if run.graph == "target"), runs[0])
    if named := [run for run in runs if run.name == wanted]:
        return named[0]
    found = [run for run in runs if run.graph == wanted]
    if not found:
        raise UsageError(f"--baseline {wanted}: no such run or graph here; there are {', '.join(run.name for run in runs)}")
    if len(found) > 1:
        raise UsageError(f"--baseline {wanted}: {', '.join(run.name for run in found)} are all of that graph; name one of them")
    return found[0]


def _refuse(runs: Sequence[RunTable], base: RunTable) -> None:
    for run in runs:
        if run.input.get("sha256") != base.input.get("sha256"):
            what = f"{run.name} solved {run.input.get('file')} and {base.name} {base.input.get('file')}, which differ"
            raise UsageError(f"{what}; compare runs over the same file")
        if not set(run.problem_ids) & set(base.problem_ids):
            raise UsageError(f"{run.name} and {base.name} have no finished problem in common")
