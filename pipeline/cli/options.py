"""The options that several commands have, and how their values are read."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import click
from msgspec import structs

from pipeline.cli.commands import F, option
from pipeline.cli.terminal import NoticeOptions, notices_as, print_notice
from pipeline.data.part import MOST_ROWS
from pipeline.errors import UsageError
from pipeline.graph.loader import PRESET, load_preset
from pipeline.runtime.admission.admission import AdmissionName
from pipeline.runtime.schedule import ScheduleName
from pipeline.session.options import RunOptions
from pipeline.system.machine import Machine

Address = tuple[str, int] | None
"""Host and port at which metrics are served; None: they are not."""


def _column(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = dict(value.partition("=")[::2] for value in values)
    for field, column in pairs.items():
        if [value.partition("=")[0] for value in values].count(field) > 1:
            raise click.BadParameter(f"{field} is mapped twice")
        if not field or not column:
            raise click.BadParameter("expected FIELD=COLUMN, for example problem=question")
    return pairs


INPUT_HELP = (
    "Problems: a Parquet, Arrow, JSON lines, JSON or CSV file, a folder or 'pattern*' of them, by path or s3:// or gs:// URL;"
    " hf://OWNER/NAME[@REVISION][:CONFIG][/SPLIT]; or - for stdin. May be repeated."
)
ENGINES_HELP = "Engines: a bundled name (tiny, sim-2xh100), a YAML file, or replay:RUN.  [default: the graph's]"
SET_HELP = "Set a param of the graph, stages.STAGE.NAME=VALUE or engines.ROLE.NAME=VALUE. May be repeated."
PRESET_HELP = "Settings of a paper: speccot, specreason, scot, or a file. --set overrides them."
ADMISSION_HELP = (
    "cache: chains, or their calls, wait while they exceed the engines' KV caches; batch: only the batch size limits how many are"
    " in flight."
)
ORDER_HELP = "input, longest (longest expected first; holds all problems in memory) or longest:RUN (by reasoning length in an earlier run)."

json_option = option("--json", "as_json", is_flag=True, help="Print JSON.", heading="Output")
overwrite_option = option("--overwrite", is_flag=True, help="Overwrite an existing file.", heading="Output")
input_option = option("-i", "--input", "inputs", required=True, multiple=True, metavar="FILE", help=INPUT_HELP, heading="Input")
column_option = option(
    "--column",
    "columns",
    multiple=True,
    callback=_column,
    metavar="FIELD=COLUMN",
    help="Read problem, answer, problem_id, options or grader from a column, or a path in one: problem=body.messages. May be repeated.",
    heading="Input",
)
limit_option = option("-n", "--limit", type=click.IntRange(1, MOST_ROWS), metavar="N", help="Only the first N problems.", heading="Input")
random_option = option("--random", metavar="N[:SEED]", help="Only N problems at random; SEED is independent of --seed.", heading="Input")
shard_option = option(
    "--shard", metavar="INDEX/COUNT", help="Only one shard of the problems, 0/COUNT to COUNT-1/COUNT; see `runs merge`.", heading="Input"
)
engines_option = option("--engines", type=click.Path(path_type=Path), metavar="NAME|FILE", help=ENGINES_HELP, heading="Models")
settings_option = option("-s", "--set", "settings", multiple=True, metavar="NAME=VALUE", help=SET_HELP, heading="Prompting")
preset_option = option("--preset", type=click.Path(path_type=Path), metavar="NAME|FILE", help=PRESET_HELP, heading="Prompting")
samples_option = option(
    "--samples",
    type=click.IntRange(1, 10_000),
    metavar="K",
    help="Samples per problem.  [default: that of --preset, else 1]",
    heading="Prompting",
)
seed_option = option("--seed", type=int, metavar="N", default=0, show_default=True, help="Random seed.", heading="Prompting")


def batch_size_option(default: int | None = 64) -> Callable[[F], F]:
    """The option of how many chains are in progress at once; without a default it may be left out."""
    return option(
        "--batch-size",
        type=click.IntRange(1, 1_000_000),
        metavar="N",
        default=default,
        show_default=default is not None,
        help="Maximum number of chains (attempts at a problem) in progress at once.",
        heading="Scheduling",
    )


def schedule_option(default: ScheduleName | None = "pipelined") -> Callable[[F], F]:
    """The option of when chains advance; without a default it may be left out."""
    return option(
        "--schedule",
        type=click.Choice(get_args(ScheduleName)),
        metavar="NAME",
        default=default,
        show_default=default is not None,
        help="pipelined: each chain advances by itself; lockstep: all take each step together; sequential: one chain at a time.",
        heading="Scheduling",
    )


def admission_option(default: AdmissionName | None = "cache") -> Callable[[F], F]:
    """The option of what limits the chains in progress; without a default it may be left out."""
    return option(
        "--admission",
        type=click.Choice(get_args(AdmissionName)),
        metavar="NAME",
        default=default,
        show_default=default is not None,
        help=ADMISSION_HELP,
        heading="Scheduling",
    )


def order_option(default: str | None = "input") -> Callable[[F], F]:
    """The option of which problems come first; without a default it may be left out."""
    return option("--order", default=default, show_default=default is not None, metavar="ORDER", help=ORDER_HELP, heading="Scheduling")


def with_preset(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a command with its `preset` among its settings, and the samples that it says where the user says none."""
    found = {name: value for name, value in options.items() if name != "preset"}
    preset: Path | None = options["preset"]
    if preset is not None:
        found["settings"] = (f"{PRESET}{preset}", *options["settings"])
    if "samples" in found and found["samples"] is None:
        found["samples"] = (load_preset(preset).samples if preset is not None else None) or 1
    return found


MODEL_HELP = (
    "The model of a role: a Hugging Face name, a folder, bundled:NAME, or a server http://HOST:PORT/v1[#NAME] (chat+http://... for one with"
    " chat completions only). Engines are chosen that fit on this machine; with --engines only its model is replaced. May be repeated."
)
model_option = option("--model", "models", multiple=True, metavar="ROLE=MODEL", help=MODEL_HELP, heading="Models")


def fail_option(default: float | None = 0.0) -> Callable[[F], F]:
    """The option of how many chains may fail; without a default it may be left out."""
    return option(
        "--fail-on-error",
        type=click.FloatRange(0, 1),
        metavar="SHARE",
        default=default,
        show_default=default is not None,
        help="Exit with code 3 only if more than this share of the chains failed, 0 to 1.",
        heading="Output",
    )


def with_models(graphs: Sequence[Path], options: Mapping[str, Any], batch_size: int = 64, machine: Machine | None = None) -> dict[str, Any]:
    """The options of a command without its `models` and, where there are any, with the engines for them as `planned_engines`.

    They are to start on this machine, unless another `machine` is given.
    """
    found = {name: value for name, value in options.items() if name != "models"}
    if not options["models"]:
        return found
    pairs = import_module("pipeline.engines.placement.choices").pairs
    place = import_module("pipeline.engines.placement.place").place
    given = {"settings": found["settings"], "engines": _file(found.get("engines")), "batch_size": batch_size, "machine": machine}
    placement = place(graphs, pairs(options["models"]), **given)
    for sentence in placement.sentences:
        print_notice(sentence)
    return found | {"planned_engines": placement.engines}


def _file(engines: Path | tuple[Path, ...] | None) -> Path | None:
    """The engines file whose models are replaced."""
    if not isinstance(engines, tuple):
        return engines
    if len(engines) > 1:
        raise UsageError("--model: replaces the models of one engines file; give --engines once")
    return next(iter(engines), None)


def metrics_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of the address at which the metrics of its run are served; they come as `metrics`."""

    @option(
        "--metrics-port", type=click.IntRange(1, 65535), metavar="PORT", help="Serve Prometheus metrics on this port.", heading="Display"
    )
    @option(
        "--metrics-host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address to serve metrics on.", heading="Display"
    )
    @wraps(command)
    def with_metrics(*args: Any, metrics_port: int | None, metrics_host: str, **options: Any) -> Any:
        return command(*args, metrics=None if metrics_port is None else (metrics_host, metrics_port), **options)

    return with_metrics


CLUSTER_HELP = "Solve on replicas of the engines on a Ray cluster: ray (RAY_ADDRESS, this machine's, or a new one) or ray://HOST:PORT."
REPLICAS_HELP = "Replicas on the cluster, each with up to --batch-size chains in flight.  [default: 1]"


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of the cluster on which it solves; they come as `cluster` and `replicas`."""
    command = option("--replicas", type=click.IntRange(1, 10_000), metavar="N", help=REPLICAS_HELP, heading="Cluster")(command)
    return option("--cluster", metavar="ray[://HOST:PORT]", help=CLUSTER_HELP, heading="Cluster")(command)


def with_cluster(options: RunOptions, cluster: str | None, replicas: int | None) -> RunOptions:
    """The options with those of the cluster that were given; raises `UsageError` for replicas without a cluster."""
    cluster = cluster or options.cluster
    if replicas is not None and cluster is None:
        raise UsageError(f"--replicas {replicas}: only with a cluster; add --cluster ray")
    return structs.replace(options, cluster=cluster, replicas=replicas or options.replicas)


def notice_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command that takes long the options `--quiet`, `--verbose`, `--timestamps` and `--log-file`."""

    @option("-q", "--quiet", is_flag=True, help="Print only errors and results.", heading="Display")
    @option("-v", "--verbose", is_flag=True, help="Also print the logs of the engines' processes.", heading="Display")
    @option("--timestamps", is_flag=True, help="Plain lines with the time instead of a live display.", heading="Display")
    @option(
        "--log-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Append messages, progress and engine logs to FILE.",
        heading="Display",
    )
    @wraps(command)
    def noticed(*args: Any, quiet: bool, verbose: bool, timestamps: bool, log_file: Path | None, **others: Any) -> Any:
        if quiet and verbose:
            raise UsageError("--quiet and --verbose: give one of them")
        notices_as(NoticeOptions(quiet=quiet, verbose=verbose, timestamps=timestamps, log_file=log_file))
        return command(*args, **others)

    return noticed
