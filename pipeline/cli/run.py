"""`pipeline run GRAPH --input FILE` and `pipeline resume RUN`: options enter; a run folder, a live display and a summary leave."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click
import msgspec
from msgspec import structs
from rich import box
from rich.table import Table as RichTable

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.resources import engine_facts
from pipeline.analysis.summary import summarize
from pipeline.analysis.summary_tables import engines, facts, stages
from pipeline.cli import live
from pipeline.cli.commands import command, option
from pipeline.cli.located import input_urls, problems_of, run_folder
from pipeline.cli.main import print_line, print_page, printing
from pipeline.cli.options import (
    Address,
    admission_option,
    batch_size_option,
    cluster_options,
    column_option,
    engines_option,
    input_option,
    json_option,
    limit_option,
    metrics_options,
    order_option,
    preset_option,
    random_option,
    samples_option,
    schedule_option,
    seed_option,
    settings_option,
    shard_option,
    with_cluster,
    with_preset,
)
from pipeline.cli.terminal.console import PlainConsole
from pipeline.cli.terminal.notices import notice_options, print_error, print_notice
from pipeline.cli.terminal.signals import restored_handlers, stop_on_signal
from pipeline.cli.terminal.starting import show_starts
from pipeline.cli.terminal.tables import print_table
from pipeline.errors import MissingExtra
from pipeline.session.checks.adapters import rejections
from pipeline.session.checks.replay import shortfall
from pipeline.session.execute import SessionResult
from pipeline.session.loop import rare_collection
from pipeline.session.observer import Observer
from pipeline.session.options import RunOptions, resume_options
from pipeline.session.resume import MAY_DRIFT
from pipeline.session.run import Solve
from pipeline.session.run import run as start
from pipeline.trace.kept_problems import TABLE as KEPT

RETRY_HELP = "Also solve the chains again that failed."


@command(headed=True)
@click.argument("graph", type=click.Path(path_type=Path))
@input_option
@column_option
@limit_option
@random_option
@shard_option
@engines_option
@settings_option
@preset_option
@samples_option
@seed_option
@batch_size_option()
@schedule_option()
@admission_option()
@order_option()
@option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="DIR",
    help="Run folder, or its s3:// or gs:// URL.  [default: runs/GRAPH-TIME]",
    heading="Output",
)
@option(
    "--keep-input/--no-keep-input",
    default=True,
    show_default=True,
    help="Keep a copy of the problems in the run folder, for report, export and resume.",
    heading="Output",
)
@json_option
@option("--resume", is_flag=True, help="Resume the run in --output, if there is one.", heading="Resume")
@option("--retry-failed", is_flag=True, help=RETRY_HELP, heading="Resume")
@option(
    "--allow-drift", multiple=True, metavar="NAME", help=f"Allow a change of {', '.join(MAY_DRIFT)}. May be repeated.", heading="Resume"
)
@cluster_options
@metrics_options
@notice_options
def run(
    graph: Path,
    inputs: tuple[str, ...],
    output: str | None,
    cluster: str | None,
    replicas: int | None,
    as_json: bool,
    metrics: Address,
    **options: Any,
) -> None:
    """Solve the problems of a file with GRAPH: a graph file, or the name of a bundled one, such as speccot.

    A run that stopped is continued by `pipeline resume`. Exit codes: see reference/exit-codes in the documentation.
    """
    first, *more = problems_of(*inputs)
    folder = None if output is None else run_folder(output, new=not options["resume"])
    chosen = RunOptions(
        graph=graph, input=first, more_inputs=tuple(more), input_urls=input_urls(inputs), output=folder, **with_preset(options)
    )
    solve_and_exit(with_cluster(chosen, cluster, replicas), as_json, metrics)


@command(headed=True)
@click.argument("run", type=click.Path(), metavar="RUN")
@option(
    "-i", "--input", "input_", type=click.Path(), metavar="FILE", help="Where the problems are now, if they have moved.", heading="Input"
)
@limit_option
@option(
    "--engines",
    type=click.Path(path_type=Path),
    metavar="NAME|FILE",
    help="Other engines: a bundled name, a YAML file, or replay:RUN.",
    heading="Models",
)
@batch_size_option(None)
@schedule_option(None)
@admission_option(None)
@order_option(None)
@json_option
@option("--retry-failed", is_flag=True, help=RETRY_HELP, heading="Resume")
@cluster_options
@metrics_options
@notice_options
def resume(
    run: str,
    input_: str | None,
    retry_failed: bool,
    cluster: str | None,
    replicas: int | None,
    as_json: bool,
    metrics: Address,
    **changed: Any,
) -> None:
    """Resume the run in folder RUN with the options that it was started with.

    Finished chains are kept, the others continue from their last answered call. Options for engines, schedule and limit replace those of
    the earlier sessions.
    """
    folder = run_folder(run, new=False)
    changes = {name: value for name, value in changed.items() if value is not None}
    options = structs.replace(resume_options(folder, retry_failed=retry_failed), **changes, allow_drift=tuple(changes))
    inputs = options.input_names if input_ is None else (input_,)
    if input_ is not None or (options.input_urls and not (folder / KEPT).is_dir()):
        first, *more = problems_of(*inputs)
        options = structs.replace(options, input=first, more_inputs=tuple(more), input_urls=input_urls(inputs))
    solve_and_exit(with_cluster(options, cluster, replicas), as_json, metrics)


def solve_and_exit(options: RunOptions, as_json: bool, metrics: Address) -> NoReturn:
    """Solve with a live display, print the summary and how to resume, and exit with the run's exit code."""
    with restored_handlers(), rare_collection(), _quiet_stdout(options), _observed(metrics) as observer:
        result = start(options, observer, attend=stop_on_signal, command=sys.argv, carry_out=_carried_out(options))
    assert result.folder is not None, "the run of a command has a folder"
    if result.nothing_to_do:
        print_notice(f"{result.folder} is finished: there is nothing to resume")
    with printing("the summary") as printed:
        _print_summary(result, result.folder, as_json)
    for sentence in filter(None, (shortfall(result.run), rejections(result.run))):
        print_notice(sentence)
    if result.error is not None:
        if result.run.status == "failed":
            print_error(str(result.error))
        print_notice(f"{result.run.status}; to resume: pipeline resume {result.folder}")
    sys.exit(printed.exit_code(result.exit_code))


@contextmanager
def _quiet_stdout(options: RunOptions) -> Iterator[None]:
    """Keep stdout for the summary: Ray prints there what its nodes say."""
    if options.cluster is None:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


def _carried_out(options: RunOptions) -> Solve | None:
    """What solves on the cluster of the options; None: engines of this process do. Raises `MissingExtra`."""
    if options.cluster is None:
        return None
    try:
        solve: Solve = import_module("pipeline.cluster.ray_actors").solve_on_ray
    except ImportError as error:
        raise MissingExtra(f"--cluster {options.cluster}", "ray", "ray") from error
    return solve


def _observed(metrics: Address) -> AbstractContextManager[Observer]:
    """What displays the run, and serves its metrics where that was asked for."""
    observer = Observer(starting=show_starts, watch=live.watch, tell=print_notice)
    if metrics is None:
        return nullcontext(observer)
    try:
        served = import_module("pipeline.cli.metrics").metrics_served
    except ImportError as error:
        raise MissingExtra("--metrics-port", "prometheus-client", "metrics") from error
    manager: AbstractContextManager[Observer] = served(*metrics, observer)
    return manager


def _print_summary(result: SessionResult, folder: Path, as_json: bool) -> None:
    """Print the summary of the run folder: as JSON, or as tables and a command that shows the answers."""
    summary = summarize(folder)
    if as_json:
        print_page(msgspec.json.encode(summary, order="sorted"))
        return
    run, console = result.run, PlainConsole()
    console.print(_facts(facts(summary, simulated=run.virtual_time, engines=engine_facts(run).values())))
    print_table(engines(summary), console)
    print_table(stages(summary), console)
    place = shlex.quote(str(folder))
    print_line(f"answers:  pipeline export {place} -o answers.csv")
    print_line(f"steps:    pipeline show {place}")
    print_line(f"report:   pipeline report {place}")


def _facts(table: Table) -> RichTable:
    """A table for the terminal: two columns without a head, under its title."""
    shown = RichTable(title=table.title, box=box.SIMPLE, show_header=False)
    shown.add_column(style="bold")
    shown.add_column()
    for row in table.rows:
        shown.add_row(*row)
    return shown
