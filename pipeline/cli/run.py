"""`pipeline run GRAPH --input FILE` and `pipeline resume RUN`: options enter; a run folder, a live display and a summary leave."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, get_args

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
from pipeline.cli.located import RunFolder, input_urls, problems_of, run_folder
from pipeline.cli.main import print_line, print_page, printing
from pipeline.cli.terminal.console import PlainConsole
from pipeline.cli.terminal.notices import notice_options, print_error, print_notice
from pipeline.cli.terminal.signals import restored_handlers, stop_on_signal
from pipeline.cli.terminal.starting import show_starts
from pipeline.cli.terminal.tables import print_table
from pipeline.data.part import MOST_ROWS
from pipeline.errors import MissingExtra, UsageError
from pipeline.graph.loader import PRESET, load_preset
from pipeline.runtime.admission.admission import AdmissionName
from pipeline.runtime.schedule import SCHEDULES
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

Address = tuple[str, int] | None
"""Host and port at which metrics are served; None: they are not."""


def _column(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = dict(value.partition("=")[::2] for value in values)
    for ours, theirs in pairs.items():
        if [value.partition("=")[0] for value in values].count(ours) > 1:
            raise click.BadParameter(f"{ours} is mapped twice")
        if not ours or not theirs:
            raise click.BadParameter("expected OURS=THEIRS, for example problem=question")
    return pairs


ORDER_HELP = "input, longest (longest expected first; holds all problems in memory) or longest:RUN (by thought length in an earlier run)."
CALIBRATION_HELP = "With speculate=auto: initial cost model, as written by `pipeline calibrate`."
column_option = click.option(
    "--column",
    "columns",
    multiple=True,
    callback=_column,
    metavar="OURS=THEIRS",
    help="Column of problem, answer, problem_id, options or grader, or a path in one: problem=body.messages.",
)


SET_HELP = "A param, stages.STAGE.NAME=VALUE or engines.ROLE.NAME=VALUE."


def metrics_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of the address at which the metrics of its run are served; they come as `metrics`."""

    @click.option("--metrics-port", type=click.IntRange(1, 65535), metavar="PORT", help="Serve Prometheus metrics of the run at this port.")
    @click.option("--metrics-host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address to serve the metrics at.")
    @wraps(command)
    def with_metrics(*args: Any, metrics_port: int | None, metrics_host: str, **options: Any) -> Any:
        return command(*args, metrics=None if metrics_port is None else (metrics_host, metrics_port), **options)

    return with_metrics


CLUSTER_HELP = "Solve on replicas of the engines on a Ray cluster: ray (RAY_ADDRESS, this machine's, or a new one) or ray://HOST:PORT."
REPLICAS_HELP = "Replicas on the cluster, each with --batch-size chains in flight.  [default: 1]"


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of the cluster on which it solves; they come as `cluster` and `replicas`."""
    command = click.option("--replicas", type=click.IntRange(1, 10_000), help=REPLICAS_HELP)(command)
    return click.option("--cluster", metavar="ray[://HOST:PORT]", help=CLUSTER_HELP)(command)


def with_cluster(options: RunOptions, cluster: str | None, replicas: int | None) -> RunOptions:
    """The options with those of the cluster that were given; raises `UsageError` for replicas without a cluster."""
    cluster = cluster or options.cluster
    if replicas is not None and cluster is None:
        raise UsageError(f"--replicas {replicas}: is for a cluster; add --cluster ray")
    return structs.replace(options, cluster=cluster, replicas=replicas or options.replicas)


settings_option = click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help=SET_HELP)
PRESET_HELP = "Settings of a paper: speccot, specreason, scot, or a file. --set overrides them."
preset_option = click.option("--preset", type=click.Path(path_type=Path), metavar="NAME", help=PRESET_HELP)
SAMPLES_HELP = "Samples per problem.  [default: that of --preset, else 1]"
INPUT_HELP = (
    "Problems: a Parquet, Arrow, JSON lines, JSON or CSV file, a folder or 'pattern*' of them, by path or s3:// or gs:// URL;"
    " hf://OWNER/NAME[@REVISION][:CONFIG][/SPLIT]; or - for stdin. May be repeated."
)
input_option = click.option("--input", "inputs", required=True, multiple=True, metavar="FILE", help=INPUT_HELP)
limit_option = click.option("--limit", type=click.IntRange(1, MOST_ROWS), help="Only the first N rows.")
shard_option = click.option("--shard", metavar="INDEX/COUNT", help="Only one shard of the problems, 0/COUNT to COUNT-1/COUNT; see merge.")
sample_option = click.option("--sample", metavar="N[:SEED]", help="Only N random rows; independent of --seed.")
samples_option = click.option("--samples", type=click.IntRange(1, 10_000), help=SAMPLES_HELP)


def with_preset(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a command with its `preset` among its settings, and the samples that it says where the user says none."""
    found = {name: value for name, value in options.items() if name != "preset"}
    preset: Path | None = options["preset"]
    if preset is not None:
        found["settings"] = (f"{PRESET}{preset}", *options["settings"])
    if "samples" in found and found["samples"] is None:
        found["samples"] = (load_preset(preset).samples if preset is not None else None) or 1
    return found


@click.command()
@click.argument("graph", type=click.Path(path_type=Path))
@input_option
@click.option("--engines", type=click.Path(path_type=Path), metavar="FILE", help="Engines file instead of the graph's own, or replay:RUN.")
@settings_option
@preset_option
@column_option
@click.option("--batch-size", type=click.IntRange(1, 1_000_000), default=64, show_default=True, help="Maximum number of chains in flight.")
@click.option("--schedule", type=click.Choice(list(SCHEDULES)), default="pipelined", show_default=True, help="Scheduling policy.")
@click.option(
    "--admission",
    type=click.Choice(get_args(AdmissionName)),
    default="cache",
    show_default=True,
    help="cache: chains, or their calls, wait while they exceed the engines' KV caches; batch: only the batch size limits them.",
)
@click.option("--order", default="input", show_default=True, metavar="ORDER", help=ORDER_HELP)
@samples_option
@limit_option
@sample_option
@shard_option
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed.")
@click.option("--modes", type=RunFolder(), metavar="RUN", help="With speculate=auto: replay the modes recorded in that run.")
@click.option("--calibration", type=click.Path(path_type=Path), metavar="FILE", help=CALIBRATION_HELP)
@cluster_options
@click.option("--output", type=click.Path(), metavar="DIR", help="Run folder, or its s3:// or gs:// URL.  [default: runs/GRAPH-TIME]")
@click.option(
    "--keep-input/--no-keep-input",
    default=True,
    show_default=True,
    help="Keep a copy of the input in the run folder, for report, export and resume.",
)
@click.option("--resume", is_flag=True, help="Resume the run in --output, if there is one.")
@click.option("--retry-failed", is_flag=True, help="On resume: retry failed chains.")
@click.option("--allow-drift", multiple=True, metavar="NAME", help=f"On resume: allow a change of {', '.join(MAY_DRIFT)}.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@metrics_options
@notice_options
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def run(
    graph: Path,
    inputs: tuple[str, ...],
    output: str | None,
    cluster: str | None,
    replicas: int | None,
    as_json: bool,
    debug: bool,
    metrics: Address,
    **options: Any,
) -> None:
    """Solve the problems of a file with GRAPH: a graph file, or the name of a bundled one, such as speccot.

    Exit codes: 0 all chains finished, 1 the run could not go on, or its summary could not be printed, 2 graph, options or
    input are wrong and nothing was started, 3 some chains failed and are recorded as such, 130 interrupted. After 1 and
    130 use `pipeline resume`.
    """
    first, *more = problems_of(*inputs)
    folder = None if output is None else run_folder(output, new=not options["resume"])
    chosen = RunOptions(
        graph=graph, input=first, more_inputs=tuple(more), input_urls=input_urls(inputs), output=folder, **with_preset(options)
    )
    solve_and_exit(with_cluster(chosen, cluster, replicas), as_json, metrics)


@click.command()
@click.argument("run", type=click.Path(), metavar="RUN")
@click.option("--input", "input_", type=click.Path(), metavar="FILE", help="Where the input file is now, if it has moved.")
@click.option("--retry-failed", is_flag=True, help="Retry failed chains.")
@cluster_options
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@metrics_options
@notice_options
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def resume(
    run: str,
    input_: str | None,
    retry_failed: bool,
    cluster: str | None,
    replicas: int | None,
    as_json: bool,
    debug: bool,
    metrics: Address,
) -> None:
    """Resume the run in folder RUN with the options it was started with.

    Finished chains are kept, the others continue from their last answered call. To change the engines or the batch size, repeat the
    whole command with `pipeline run ... --output RUN --resume --allow-drift engines`.
    """
    folder = run_folder(run, new=False)
    options = resume_options(folder, retry_failed=retry_failed)
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
