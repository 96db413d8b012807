"""`pipeline sweep GRAPH... --input FILE --batch-size 1,8,32`: options enter; a folder of points, tables and a report leave."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
from msgspec import structs

from pipeline.analysis.points import Point
from pipeline.analysis.sweep_tables import crossings, sweep_tables
from pipeline.analysis.tables import Table, as_markdown
from pipeline.cli import live
from pipeline.cli.commands import HeadedCommand, headed, option
from pipeline.cli.console import PlainConsole, print_parts
from pipeline.cli.live import restored_handlers, stop_at_first_signal
from pipeline.cli.located import LocalPath, ProblemFile
from pipeline.cli.options import (
    ENGINES_HELP,
    bound,
    model_option,
    notice_options,
    preset_option,
    run_options,
    settings_option,
)
from pipeline.cli.show import write_page
from pipeline.cli.terminal import output, print_notice, print_page
from pipeline.errors import MissingExtra
from pipeline.options import ScheduleName
from pipeline.run.loop import rare_collection
from pipeline.run.observer import Observer
from pipeline.sweep.plan import SweepOptions
from pipeline.sweep.sweep import sweep as start


class Listed(click.ParamType[Any]):
    """The type of an option that takes several values of one type, with commas between them."""

    name = "list"

    def __init__(self, each: click.ParamType[Any]) -> None:
        self.each = each

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """A value that is named twice is an error."""
        if isinstance(value, tuple):
            return value
        found = tuple(self.each.convert(part.strip(), param, ctx) for part in str(value).split(","))
        if len(set(found)) < len(found):
            self.fail(f"{value!r} names a value twice", param, ctx)
        return found


def _vary(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for value in values:
        name, _, listed = value.partition("=")
        if not name or not listed or not all(listed.split(",")):
            raise click.BadParameter(f"{value!r}: expected NAME=VALUE,VALUE,..., for example candidates=1,2,5")
        found[name] = tuple(listed.split(","))
    return found


models_option, scheduling_option = headed("Models"), headed("Scheduling")


@click.command(cls=HeadedCommand)
@click.argument("graphs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="GRAPH...")
@option("-i", "--input", "input_", required=True, type=ProblemFile(), metavar="FILE", help="Problems, as for `run`.", heading="Input")
@run_options("columns", "limit", "random")
@models_option(
    "--engines",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="NAME|FILE",
    help=f"{ENGINES_HELP} May be repeated, each with a target-only baseline.",
)
@model_option
@models_option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="GRAPH",
    help="Graph of the target-only baseline.  [default: target.yaml next to GRAPH, else the bundled one]",
)
@models_option(
    "--baseline-engines",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="NAME|FILE",
    help="Engines on which the target-only baseline runs as well; --set applies to them, too. May be repeated.",
)
@settings_option
@preset_option
@option(
    "--vary",
    multiple=True,
    callback=_vary,
    metavar="NAME=VALUE,...",
    help="Values of a param: candidates=1,2,5. May be repeated.",
    heading="Prompting",
)
@run_options("samples", "seed")
@scheduling_option(
    "--batch-size",
    "batch_sizes",
    required=True,
    type=Listed(click.IntRange(1, 1_000_000)),
    metavar="N,...",
    help="Batch sizes, such as 1,8,32,64,128.",
)
@scheduling_option(
    "--schedule",
    "schedules",
    type=Listed(click.Choice(get_args(ScheduleName))),
    default="pipelined",
    show_default=True,
    metavar="NAME,...",
    help=f"Schedules: {', '.join(get_args(ScheduleName))}.",
)
@run_options("admission")
@scheduling_option(
    "--repeats", type=click.IntRange(1, 1000), metavar="N", default=3, show_default=True, help="Runs per point; simulated points: 1."
)
@scheduling_option(
    "--workers",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Maximum number of simulated points in parallel.  [default: number of cores]",
)
@option("-o", "--output", type=LocalPath(), metavar="DIR", help="Sweep folder.  [default: sweeps/GRAPH-TIME]", heading="Output")
@run_options("fail_on_error")
@option("--resume", is_flag=True, help="Resume the sweep in --output; finished points are kept.", heading="Resume")
@notice_options
def sweep(graphs: tuple[Path, ...], input_: Path, **options: Any) -> None:
    """Solve the same problems with GRAPH... at several batch sizes, with a target-only baseline.

    Real engines are started once; the target-only baseline is started again if the other engines' memory is added to it, and for each of
    --baseline-engines. Simulated points run in parallel. Every point is a run folder under DIR/runs and a row of DIR/points.parquet.
    """
    observer = Observer(starting=live.show_starts, tell=print_notice)
    if live.has_panel():
        observer = structs.replace(observer, watch=live.watch)
    chosen = bound(graphs, options, max(options["batch_sizes"]))
    with restored_handlers(), rare_collection():
        result = start(SweepOptions(graphs=graphs, input=input_, **chosen), observer, print_point, attend=stop_at_first_signal)
    code = result.exit_code
    if result.points:
        write_report(result.folder)
        if not output().prints("the tables", partial(_print_tables, result.points)):
            code = code or 1
    print_notice(f"{len(result.points)} of {result.planned} points in {result.folder}")
    if result.error is not None:
        output().error(str(result.error))
        print_notice(f"to resume: the same command with --output {result.folder} --resume")
    sys.exit(code)


def _print_tables(points: Sequence[Point]) -> None:
    print_tables([*sweep_tables(points), "\n".join(crossings(points))])


def print_tables(parts: Sequence[str | Table]) -> None:
    """Print paragraphs and tables: on a terminal as such, else as Markdown."""
    if PlainConsole().is_terminal:
        print_parts(parts)
    else:
        print_page(as_markdown(parts))


def write_report(folder: Path) -> None:
    """Write the sweep's page; without the extra that pages need, print how to get it."""
    try:
        write_page([folder], folder / "report.html")
        print_notice(f"page: {folder / 'report.html'}")
    except MissingExtra as error:
        print_notice(f"no page: {error}; then pipeline view {folder}")


def print_point(number: int, planned: int, point: Point) -> None:
    """A line about a point that is finished."""
    tail = f"{point.tail_s:.3g} s of {point.wall_s:.3g} s tail"
    over = f" over {point.data}" if point.data else ""
    again = f"repeat {point.repeat}" if point.seed is None else f"seed {point.seed}"
    where = f"{point.curve}{over}, batch size {point.batch_size}, {again}"
    if point.problems_per_s is None:
        print_notice(f"{number}/{planned} {where}: {point.failed} of {point.chains} chains failed, so that it has no speed")
    else:
        print_notice(f"{number}/{planned} {where}: {point.problems_per_s:.3g} problems/s, {tail}")
