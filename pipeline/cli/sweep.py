"""`pipeline sweep GRAPH... --input FILE`, `pipeline sweep STUDY`: options or a study file enter; runs, a table, a line of advice and a page
leave."""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource
from msgspec import structs

from pipeline.analysis.compare import data_name
from pipeline.analysis.curves import advice, read_points, study_tables, sweep_table
from pipeline.cli import live
from pipeline.cli.console import print_parts
from pipeline.cli.live import restored_handlers, stop_at_first_signal
from pipeline.cli.options import (
    ENGINES_HELP,
    HeadedCommand,
    LocalPath,
    ProblemFile,
    bound,
    headed,
    model_option,
    notice_options,
    option,
    preset_option,
    run_options,
    settings_option,
)
from pipeline.cli.show import write_page
from pipeline.cli.terminal import output, print_line, print_notice
from pipeline.engines.placement import pairs
from pipeline.errors import MissingExtra, UsageError
from pipeline.graph.files import parse
from pipeline.options import SCHEDULE_HELP, RunOptions, ScheduleName
from pipeline.run.loop import rare_collection
from pipeline.run.run import Observer
from pipeline.store.run_file import RunFile
from pipeline.study.choose import choose, write_preset
from pipeline.study.points import Point, Study, plan_sweep
from pipeline.study.run import SweepResult, carry_out
from pipeline.study.study_file import is_study, read_study
from pipeline.study.systems import EnginesEntry, Matrix, SystemEntry, engines_name, varied

WITH_A_STUDY = ("graphs", "models", "small", "dry_run", "output", "fail_on_error", "resume", "quiet", "verbose", "log_file")
"""What may be given with a study file, which says the rest itself."""


class Listed(click.ParamType[Any]):
    """The type of an option that takes several values of one type, with commas between them."""

    name = "list"

    def __init__(self, each: click.ParamType[Any]) -> None:
        self.each = each

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """A value named twice is an error."""
        if isinstance(value, tuple):
            return value
        found = tuple(self.each.convert(part.strip(), param, ctx) for part in str(value).split(","))
        if len(set(found)) < len(found):
            self.fail(f"{value!r} names a value twice", param, ctx)
        return found


def _vary(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for value in values:
        name, _, listed = value.partition("=")
        if not name or not listed or not all(listed.split(",")):
            raise click.BadParameter(f"{value!r}: expected NAME=VALUE,VALUE,..., for example candidates=1,2,5")
        found[name] = [parse(each, f"--vary {value}") for each in listed.split(",")]
    return found


def _share(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    try:
        share = None if text is None else float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if share is not None and not 0 < share < 1:
        raise click.BadParameter(f"{text!r}: expected a share between 0 and 1, for example 1% or 0.01")
    return share


models_option, scheduling_option, output_option, prompting_option = map(headed, ("Models", "Scheduling", "Output", "Prompting"))
FILE = click.Path(path_type=Path)
INPUTS = "Problems, as for `run`. May be repeated, each a data set."
ENGINES = f"{ENGINES_HELP} May be repeated, each with a target-only baseline."
BASELINE = "Graph of the target-only baseline.  [default: target.yaml next to GRAPH, else the bundled one]"
BASELINE_ENGINES = "Engines on which the target-only baseline runs as well; --set applies to them, too. May be repeated."
SIZES, SCHEDULES = Listed(click.IntRange(1, 1_000_000)), Listed(click.Choice(get_args(ScheduleName)))
MAX_LOSS = "Write the fastest settings that lose at most this share of accuracy, such as 1%, as a preset; INPUT is a validation set."


@click.command(cls=HeadedCommand)
@click.argument("graphs", type=FILE, nargs=-1, required=True, metavar="GRAPH...|STUDY")
@option("-i", "--input", "inputs", multiple=True, type=ProblemFile(), metavar="INPUT", help=INPUTS, heading="Input")
@run_options("columns", "limit", "random")
@models_option("--engines", type=FILE, multiple=True, metavar="NAME|FILE", help=ENGINES)
@model_option
@models_option("--baseline", type=FILE, metavar="GRAPH", help=BASELINE)
@models_option("--baseline-engines", type=FILE, multiple=True, metavar="NAME|FILE", help=BASELINE_ENGINES)
@settings_option
@preset_option
@prompting_option("--vary", multiple=True, callback=_vary, metavar="NAME=VALUE,...", help="Values of a param. May be repeated.")
@run_options("samples")
@prompting_option("--seeds", type=Listed(click.INT), default="0", show_default=True, metavar="N,...", help="Random seeds, a run for each.")
@scheduling_option("--batch-size", "batch_sizes", type=SIZES, default="1,8,32", show_default=True, metavar="N,...", help="Batch sizes.")
@scheduling_option("--schedule", "schedules", type=SCHEDULES, default="pipelined", metavar="NAME,...", help=SCHEDULE_HELP)
@run_options("admission")
@scheduling_option("--repeats", type=click.IntRange(1, 1000), metavar="N", default=3, show_default=True, help="Runs per point.")
@output_option("--max-loss", callback=_share, metavar="SHARE", help=MAX_LOSS)
@output_option("--small", is_flag=True, help="The small form of a study file, on what is bundled: minutes on two cores.")
@output_option("--dry-run", is_flag=True, help="Print the runs it would make, and stop.")
@output_option("-o", "--output", type=LocalPath(), metavar="DIR", help="Sweep folder.  [default: sweeps/NAME-TIME]")
@run_options("fail_on_error")
@option("--resume", is_flag=True, help="Resume the sweep in --output; finished points are kept.", heading="Resume")
@notice_options
def sweep(graphs: tuple[Path, ...], small: bool, dry_run: bool, max_loss: float | None, **options: Any) -> None:
    """Solve the same problems with GRAPH... at several batch sizes, beside the target alone, and say which is fastest where.

    STUDY is the name or path of a study file, which says all that itself; only --model may be given. See `pipeline list studies`. Every
    point is a run folder under DIR/runs. Real engines stay open from one point to the next; simulated points run in parallel.
    """
    study = _study(graphs, small, options) if is_study(graphs[0]) else _sweep(graphs, options)
    if max_loss is not None and len(study.groups) > 1:
        raise UsageError("--max-loss: needs one data set, the validation set")
    if dry_run:
        print_parts(_planned(study))
        return
    observer = Observer(starting=live.Starts, tell=print_notice)
    if live.has_panel():
        observer = structs.replace(observer, watch=live.watch)
    with restored_handlers(), rare_collection():
        result = carry_out(study, observer, _print_point, attend=stop_at_first_signal)
    code = result.exit_code
    if result.chains > result.failed and not output().prints("the table", partial(_print_result, result)):
        code = code or 1
    if result.error is not None:
        output().error(str(result.error))
        print_notice(f"{len(result.points)} of {result.planned} points; to resume: the same command with --output {result.folder} --resume")
    elif max_loss is not None:
        code = code or _choose(result, max_loss, graphs, options)
    sys.exit(code)


def _study(graphs: tuple[Path, ...], small: bool, options: dict[str, Any]) -> Study:
    """What a study file runs."""
    if len(graphs) > 1:
        raise UsageError(f"{graphs[0]}: is a study file; name it alone")
    ctx = click.get_current_context()
    known = {param.name for param in ctx.command.params if ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE}
    if unfit := sorted(known - {*WITH_A_STUDY, None}):
        raise UsageError(f"--{unfit[0].replace('_', '-')}: a study file says that itself; leave it out")
    folder = RunOptions(graph=graphs[0], input=(), **{name: options[name] for name in ("output", "fail_on_error", "resume")})
    return read_study(graphs[0], folder, pairs(options["models"]), small=small)


def _sweep(graphs: tuple[Path, ...], options: dict[str, Any]) -> Study:
    """What the options of a sweep run."""
    inputs = options["inputs"]
    if not inputs:
        raise click.UsageError("no problems to solve: name a file or a data set with --input, such as arith", click.get_current_context())
    chosen, engines = bound(graphs, options, max(options["batch_sizes"])), options["engines"]
    data = {data_name(each) if len(inputs) > 1 else "": {"input": (str(each),)} for each in inputs}
    if len(data) < len(inputs):
        raise UsageError("--input: two data sets have the same name; rename one of them")
    own = {name: chosen[name] for name in RunOptions.__struct_fields__ if name in chosen.keys() - {"engines", "baseline"}}
    matrix = Matrix(
        shared=RunOptions(graph=graphs[0], input=(str(inputs[0]),), **own),
        systems=varied([SystemEntry(graph=str(each)) for each in graphs], options["vary"]),
        engines=[EnginesEntry(engines=str(each), name=engines_name(each) if len(engines) > 1 else "") for each in engines],
        data=data,
        **{name: chosen[name] for name in ("baseline", "baseline_engines", "batch_sizes", "schedules", "seeds", "repeats")},
    )
    return plan_sweep(matrix)


def _planned(study: Study) -> list[str]:
    """What would be run: a line for each group of runs that are compared."""
    found = [study.title] if study.title else []
    for heading, points in study.groups.items():
        sizes = ", ".join(map(str, sorted({point.label.batch_size for point in points})))
        curves = ", ".join(dict.fromkeys(point.label.curve for point in points))
        found.append(f"{heading or study.name}: {curves}; batch size {sizes}: {len(points)} runs")
    tables, simulated = ", ".join(dict(study.tables)) or "none", sum(point.virtual for point in study.points)
    return [*found, f"{len(study.points)} runs, {simulated} of them simulated. Tables: {tables}."]


def _print_point(number: int, planned: int, point: Point, run: RunFile) -> None:
    """A line about a finished point."""
    where = f"{point.label.curve}{f' over {point.label.data}' if point.label.data else ''}, batch size {point.label.batch_size}"
    failed = f", {run.totals.chains_failed} failed" if run.totals.chains_failed else ""
    print_notice(f"{number}/{planned} {where}: {run.totals.chains} chains{failed} in {run.wall_time_s or 0:.3g} s")


def _print_result(result: SweepResult) -> None:
    """The papers' tables of a study that has any, else a table and a line of advice for each data set; and where the rest is."""
    parts = list(study_tables(result.folder))
    for heading, points in read_points(result.folder).items() if not parts else ():
        parts += [sweep_table(points, heading), *advice(points)[:1]]
    try:
        write_page([result.folder], page := result.folder / "report.html")
        more = f"All curves, and what is not alike: {page}"
    except MissingExtra as error:
        more = f"No page: {error}"
    print_parts([*parts, f"{more}\nRuns: pipeline compare {result.folder}/runs/*"])


def _choose(result: SweepResult, max_loss: float, graphs: tuple[Path, ...], options: dict[str, Any]) -> int:
    """Print the command with the fastest settings that are accurate enough, and write them; the exit code, 1 where there are none."""
    found = choose([point for points in read_points(result.folder).values() for point in points], max_loss)
    if found is None:
        output().error(f"--max-loss {max_loss:.2%}: no settings are shown to lose less; allow more, or take more problems")
        return 1
    (point, most), file = found, result.folder / "chosen.yaml"
    write_preset(point, file)
    run = point.run.file.options
    graph, engines = graphs[0] if len(graphs) == 1 else run.graph, options["engines"][0] if len(options["engines"]) == 1 else run.engines
    words = ["pipeline", "run", str(graph), "INPUT", "--preset", str(file), "--batch-size", str(run.batch_size)]
    words += [word for each in options["models"] for word in ("--model", each)]
    words += [word for each in run.settings if each.startswith("engines.") for word in ("--set", each)]
    words += ["--engines", str(engines)] if options["engines"] else []
    print_line(f"Chosen: {point.label.curve}, {most:.2%} loss of accuracy at most (95 %). Report accuracy on other problems.")
    print_line(shlex.join(words))
    return 0
