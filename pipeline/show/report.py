"""Runs and sweeps as one page: run folders or the folder of a sweep enter, HTML leaves."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from pipeline.analysis.compare import SIMULATED, compare, pooled_runs, read_runs, sentences, simulated, speeds
from pipeline.analysis.curves import SWEEP, Measured, advice, read_card, read_points, study_tables, sweep_table, unlike
from pipeline.analysis.papers import paper_table
from pipeline.analysis.progress import RunState, run_state
from pipeline.analysis.tables import Table
from pipeline.errors import UsageError
from pipeline.show.curves import latency_and_accuracy, sweep_charts
from pipeline.show.page import page
from pipeline.show.problems import AskedChains, FoundChains, chain_page, worth_reading
from pipeline.show.sections import RunFigures, Section, run_figures
from pipeline.show.transcripts import Transcript, read_transcripts
from pipeline.store.query import Query

LISTED, READ = 1_000, 30
"""Problems of a run that a file lists, and those of them that it has in full."""


class RunPage(Struct, frozen=True, kw_only=True):
    """What the page of a run shows."""

    state: RunState
    figures: RunFigures | None
    """Null where the page asks for them later."""
    found: FoundChains
    transcripts: Mapping[str, Transcript] = {}
    """Chains to read in the page itself."""


def report(runs: Sequence[Path]) -> str:
    """The HTML of a page on one run, on several runs with a comparison before them, or on one sweep.

    Raises `InputError` for any other folder and `UsageError` for a sweep among several folders.
    """
    if sweeps := [run for run in runs if is_sweep(run)]:
        if len(runs) > 1:
            raise UsageError(f"{sweeps[0]}: is a sweep; name it alone, or name runs in its folder `runs`")
        title, first = sweep_sections(runs[0])
        return page("run.html", title, first=first, runs=[], asked=AskedChains())
    each = [_run_page(run) for run in runs]
    first = [comparison(runs)] if len(runs) > 1 else []
    title = f"{len(runs)} runs: {', '.join(run.state.folder for run in each)}" if first else f"Run {each[0].state.folder}"
    return page("run.html", title, first=first, runs=each, asked=AskedChains())


def _run_page(folder: Path) -> RunPage:
    state = run_state(folder)
    with Query(folder) as db:
        found = chain_page(db, AskedChains(), state.made_up, LISTED)
        listed = {each.chain_id for each in found.rows}
        chosen = [name for name in worth_reading(db, READ) if name in listed]
        read = dict(zip(chosen, read_transcripts(db, chosen, state.made_up), strict=False))
        figures = run_figures(folder, db)
    return RunPage(state=state, figures=figures, found=found, transcripts=read)


def comparison(runs: Sequence[Path]) -> Section:
    """A section with the comparison of `runs` or, where they cannot be compared, with the reason."""
    try:
        read = read_runs(runs, pooled=True)
        found = compare(read)
    except UsageError as error:
        return Section(title="Comparison", notices=[f"These runs are not compared: {error}."])
    pooled = [f"{run} pools {names}: they differ only in the seed." for run, names in pooled_runs(found)]
    plot = latency_and_accuracy(found)
    flags = Table("Differences", ("run", "what"), tuple((run, why) for run, said in found.flags.items() for why in said))
    return Section(
        title="Comparison",
        notices=[said] if (said := simulated(found)) else [],
        text=[*(f"{each}." for each in sentences(found)), *pooled],
        charts=[] if plot is None else [plot],
        tables=[speeds(found), *([paper_table("data-sets", read)] if len(found.baselines) > 1 else []), *([flags] if flags.rows else [])],
    )


def is_sweep(folder: Path) -> bool:
    """Whether `folder` was made by `pipeline sweep`."""
    return (folder / SWEEP).is_file()


def sweep_sections(folder: Path) -> tuple[str, list[Section]]:
    """The title and the sections of a page on the sweep in `folder`; raises `InputError` where it holds no points."""
    groups, card = read_points(folder), read_card(folder)
    sections = [sweep_section(points, heading) for heading, points in groups.items()]
    if not card.title:
        return f"Sweep {folder.resolve().name}", sections
    parts = list(study_tables(folder))
    tables = [part for part in parts if isinstance(part, Table)]
    first = Section(title=card.title, text=[part for part in parts if isinstance(part, str)], tables=tables)
    return f"Study {card.title}", [first, *sections]


def sweep_section(points: Sequence[Measured], heading: str = "") -> Section:
    """A section on points that are compared: where curves cross the best baseline, their table, and charts of several batch sizes."""
    several = len({point.label.batch_size for point in points}) > 1
    return Section(
        title=heading or "Throughput by batch size",
        notices=[SIMULATED] if any(point.run.file.virtual_time for point in points) else [],
        text=[*advice(points), *unlike(points)],
        charts=list(sweep_charts(points)) if several else [],
        tables=[sweep_table(points)],
    )
