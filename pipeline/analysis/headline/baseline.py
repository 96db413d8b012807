"""The run of the target alone that belongs to a run (`run --baseline`): the run's folder enters, the comparison with it leaves.

Its folder is named after the run's and lies next to it, so that both are still found after they are moved together.
"""

from collections.abc import Collection
from pathlib import Path

from msgspec import structs

from pipeline.analysis.compare.compare import compare
from pipeline.analysis.compare.rules import Rules, differences
from pipeline.analysis.compare.runs import read_runs
from pipeline.analysis.headline.figures import Baseline, Summary
from pipeline.analysis.progress import ACTIVE, state_of
from pipeline.analysis.summary import summarize, summarize_work
from pipeline.analysis.time.work import RunTimes
from pipeline.errors import InputError, UsageError
from pipeline.store.folder import FILE
from pipeline.store.run_file import RunFile

SUFFIX = "-target"
"""Appended to the name of the run's folder for the baseline's."""


def baseline_folder(run: Path) -> Path:
    """The folder of the baseline of the run in the folder `run`, whether there is one or not."""
    return run.with_name(run.name + SUFFIX)


def summary_of(run: Path, work: RunTimes | None = None) -> Summary:
    """The summary of a run folder as it is now, with its baseline where there is one; `work` where it is open already.

    Raises `InputError` as `summarize` does."""
    found = summarize(run) if work is None else summarize_work(work)
    status = state_of(run, RunFile.read(run)) if found.status in ACTIVE else found.status
    return structs.replace(found, status=status, baseline=read_baseline(run.absolute(), found.stop_reasons))


def read_baseline(run: Path, stop_reasons: Collection[str]) -> Baseline | None:
    """How the run in the folder `run`, whose chains ended for these reasons, compares with its baseline; None where it has none."""
    folder = baseline_folder(run)
    if not (folder / FILE).is_file():
        return None
    file = RunFile.read(folder)
    state = state_of(folder, file)
    if state != "finished":
        return Baseline(run=folder.name, status=state)
    try:
        tables = read_runs([run, folder])
        found = compare(tables, folder.name)
    except (InputError, UsageError) as error:  # no problem that both have finished
        return Baseline(run=folder.name, status=state, flags=(str(error),))
    ours, theirs = found.runs
    unmet = _unmet(tables[0].rules, tables[1].rules, stop_reasons)
    rate, base_rate = ours.problems_per_s, theirs.problems_per_s
    return Baseline(
        run=folder.name,
        status=state,
        problems_per_s=base_rate,
        accuracy=theirs.accuracy.value,
        times_as_fast=rate / base_rate if rate and base_rate else None,
        speed_up=ours.over_baseline.speed_up,
        flags=tuple(flag.what for flag in found.flags if flag.run == ours.run and flag.what not in unmet),
    )


def _unmet(ours: Rules, theirs: Rules, stop_reasons: Collection[str]) -> set[str]:
    """What differs in the stop conditions of two runs, if no chain has met one."""
    met = {each.partition(" ")[0] for each in (*ours.exits, *theirs.exits)} & set(stop_reasons)
    return set() if met else {clause for kind, clause in differences(ours, theirs) if kind == "exits"}
