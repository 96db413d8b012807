"""`pipeline study NAME`: a study file enters; a folder of runs, the papers' tables over them and a report leave."""

import sys
from functools import partial
from pathlib import Path

import click
from msgspec import structs

from pipeline.analysis.studies import Study, read_study, study_tables
from pipeline.analysis.tables import Table
from pipeline.cli import live
from pipeline.cli.commands import option
from pipeline.cli.live import restored_handlers, stop_at_first_signal
from pipeline.cli.located import LocalPath
from pipeline.cli.options import notice_options
from pipeline.cli.study.sweep import print_point, print_tables, write_report
from pipeline.cli.terminal import output as notices
from pipeline.cli.terminal import print_notice
from pipeline.errors import UsageError
from pipeline.run.loop import rare_collection
from pipeline.run.observer import Observer
from pipeline.sweep.plan import SweepPlan
from pipeline.sweep.study import StudyOptions, missing_data, plan_study, score_steps
from pipeline.sweep.sweep import SweepResult, carry_out


@click.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="NAME|FILE")
@option("--small", is_flag=True, help="Its small form, on what is bundled: minutes on two cores.")
@option("--dry-run", is_flag=True, help="Print the runs it would make, and stop.")
@option(
    "--workers",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Maximum number of simulated runs in parallel.  [default: number of cores]",
)
@option("-o", "--output", type=LocalPath(), metavar="DIR", help="Folder of the study.  [default: sweeps/NAME-TIME]")
@option("--resume", is_flag=True, help="Resume the study in --output; finished runs are kept.")
@notice_options
def study(file: Path, dry_run: bool, small: bool, workers: int | None, output: Path | None, resume: bool) -> None:
    """Run all that a table or a figure of a paper compares, and print that table.

    A study file names systems, engines, data sets, params, batch sizes and seeds, what is compared with what, and tables; see
    `pipeline list studies`. Every run is a run folder under DIR/runs, DIR/report.html has the tables and curves. Real engines stay open for
    all runs on them that follow each other. Simulated runs take place in parallel.
    """
    plan = plan_study(StudyOptions(file=file, small=small, output=output, resume=resume, workers=workers))
    assert plan.study is not None
    if dry_run:
        print_tables(_planned(plan, plan.study))
        return
    if missing := missing_data(plan):
        raise UsageError(missing)
    observer = Observer(starting=live.show_starts, tell=print_notice)
    if live.has_panel():
        observer = structs.replace(observer, watch=live.watch)
    with restored_handlers(), rare_collection():
        result = carry_out(plan, observer, print_point, attend=stop_at_first_signal)
    failures = score_steps(result.folder, plan.study, print_notice) if result.error is None else [str(result.error)]
    code = result.exit_code or (1 if failures else 0)
    if result.points:
        write_report(result.folder)
        if not notices().prints("the tables", partial(_print_study, result)):
            code = code or 1
    print_notice(f"{len(result.points)} of {result.planned} runs in {result.folder}")
    for each in failures:
        notices().error(each)
    if failures:
        print_notice(f"to resume: the same command with --output {result.folder} --resume")
    sys.exit(code)


def _print_study(result: SweepResult) -> None:
    found = read_study(result.folder)
    assert found is not None, "it was written before the first run"
    print_tables([found.heading, *study_tables(result.folder, found, result.points)])


def _planned(plan: SweepPlan, found: Study) -> list[str | Table]:
    """What a study would run: a row for each group of runs that are compared, and sentences."""
    points = {point.name: point for point in plan.points}
    rows = []
    for heading, places in found.groups.items():
        members = [points[name] for name in places]
        labels = list(dict.fromkeys(place.system for place in places.values()))
        sizes = sorted({point.coordinates.batch_size for point in members})
        rows.append((heading, ", ".join(labels), ", ".join(map(str, sizes)), str(members[0].sweep.samples), str(len(members))))
    groups = Table("Runs", ("compared", "systems", "batch sizes", "samples", "runs"), tuple(rows))
    tables = list(dict.fromkeys(name for each in found.tables for name in each.names))
    simulated = sum(point.system.virtual for point in plan.points)
    said = [f"{len(plan.points)} runs, {simulated} of them simulated. Tables: {', '.join(tables) or 'none'}.", missing_data(plan)]
    return [found.heading, groups, *filter(None, said)]
