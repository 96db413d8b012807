"""`pipeline report` without the command: run folders enter, the HTML of one page leaves. Nothing is written."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.compare import compare
from pipeline.analysis.compare.runs import read_runs
from pipeline.analysis.compare.tables import INTERVALS, SIMULATED, tables
from pipeline.errors import UsageError
from pipeline.report.figures.compare import latency_and_accuracy
from pipeline.report.page import Figure, Section, page
from pipeline.report.run_sections import ReportOptions, run_sections
from pipeline.report.sweep import is_sweep, sweep_report


def report(runs: Sequence[Path], asked: ReportOptions) -> str:
    """The page of one run, of several with a comparison before them, or of a sweep; raises `InputError` for any other folder."""
    if sweeps := [run for run in runs if is_sweep(run)]:
        if len(runs) > 1:
            raise UsageError(f"{sweeps[0]}: is a sweep; report it alone, or name runs in its folder `runs`")
        return sweep_report(runs[0])
    if len(runs) == 1:
        return page(f"Run {_name(runs[0])}", run_sections(runs[0], asked))
    names = [_name(run) for run in runs]
    each = [Section(title=name, sections=run_sections(run, asked)) for name, run in zip(names, runs, strict=True)]
    return page(f"{len(runs)} runs: {', '.join(names)}", [comparison(runs), *each])


def comparison(runs: Sequence[Path]) -> Section:
    """The runs side by side; where they cannot be compared, why not."""
    try:
        found = compare(read_runs(runs))
    except UsageError as error:
        return Section(title="Side by side", notices=[f"These runs are not compared: {error}."])
    simulated = [SIMULATED] if any(run.simulated for run in found.runs) else []
    plot = latency_and_accuracy(found)
    flags = Table("Not the same in all runs", ("run", "what"), tuple((flag.run, flag.what) for flag in found.flags))
    return Section(
        title="Side by side",
        notices=simulated,
        text=[f"Baseline: {found.baseline}. {INTERVALS}"],
        figures=[] if plot is None else [Figure("Right answers against time, by run", plot)],
        tables=[*([flags] if flags.rows else []), *tables(found)],
    )


def _name(run: Path) -> str:
    return run.resolve().name
