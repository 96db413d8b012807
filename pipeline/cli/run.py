"""`pipeline run GRAPH --input FILE` and `pipeline resume RUN`: options enter; a run folder, a live display and a summary leave."""

from pathlib import Path
from typing import Any

import click
from msgspec import structs

from pipeline.cli.commands import command, option
from pipeline.cli.located import input_urls, problems_of, written_run
from pipeline.cli.options import (
    Address,
    admission_option,
    batch_size_option,
    cluster_options,
    column_option,
    engines_option,
    fail_option,
    input_option,
    json_option,
    limit_option,
    metrics_options,
    model_option,
    notice_options,
    order_option,
    preset_option,
    random_option,
    samples_option,
    schedule_option,
    seed_option,
    settings_option,
    shard_option,
    with_cluster,
    with_models,
    with_preset,
)
from pipeline.cli.solving import solve_and_exit, with_baseline
from pipeline.session.options import RunOptions, resume_options
from pipeline.session.resume import MAY_DRIFT
from pipeline.store.kept_problems import TABLE as KEPT

BASELINE_HELP = "Then solve the problems with the target alone as well, on the same engines, and compare."
baseline_option = option("--baseline", is_flag=True, help=BASELINE_HELP, heading="Output")
TAKE_OVER_HELP = "Continue a run at a URL in whose folder a machine was at work that is dead now."
take_over_option = option("--take-over", is_flag=True, help=TAKE_OVER_HELP, heading="Resume")
RETRY_HELP = "Also solve the chains again that failed."


@command(headed=True)
@click.argument("graph", type=click.Path(path_type=Path))
@input_option
@column_option
@limit_option
@random_option
@shard_option
@engines_option
@model_option
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
@baseline_option
@json_option
@fail_option()
@option("--resume", is_flag=True, help="Resume the run in --output, if there is one.", heading="Resume")
@option("--retry-failed", is_flag=True, help=RETRY_HELP, heading="Resume")
@take_over_option
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
    baseline: bool,
    take_over: bool,
    **options: Any,
) -> None:
    """Solve the problems of a file with GRAPH: a graph file, or the name of a bundled one, such as speccot.

    A run that stopped is continued by `pipeline resume`. Exit codes: see reference/exit-codes in the documentation.
    """
    first, *more = problems_of(*inputs)
    folder = None if output is None else written_run(output, new=not options["resume"], take_over=take_over)
    bound = with_models([graph], with_preset(options), options["batch_size"])
    chosen = RunOptions(
        graph=graph,
        input=first,
        more_inputs=tuple(more),
        input_urls=input_urls(inputs),
        output=None if folder is None else folder.path,
        **bound,
    )
    solve_and_exit(with_baseline(with_cluster(chosen, cluster, replicas), output, asked=baseline), folder, as_json, metrics)


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
@baseline_option
@json_option
@fail_option(None)
@option("--retry-failed", is_flag=True, help=RETRY_HELP, heading="Resume")
@take_over_option
@cluster_options
@metrics_options
@notice_options
def resume(
    run: str,
    input_: str | None,
    retry_failed: bool,
    fail_on_error: float | None,
    cluster: str | None,
    replicas: int | None,
    as_json: bool,
    metrics: Address,
    baseline: bool,
    take_over: bool,
    **changed: Any,
) -> None:
    """Resume the run in folder RUN with the options that it was started with.

    Finished chains are kept, the others continue from their last answered call. Options for engines, schedule and limit replace those of
    the earlier sessions.
    """
    folder = written_run(run, new=False, take_over=take_over)
    changes = {name: value for name, value in changed.items() if value is not None}
    options = resume_options(folder.path, retry_failed=retry_failed, fail_on_error=fail_on_error)
    planned = {} if "engines" in changes else options.planned_engines
    options = structs.replace(options, **changes, planned_engines=planned, allow_drift=tuple(changes))
    inputs = options.input_names if input_ is None else (input_,)
    if input_ is not None or (options.input_urls and not (folder.path / KEPT).is_dir()):
        first, *more = problems_of(*inputs)
        options = structs.replace(options, input=first, more_inputs=tuple(more), input_urls=input_urls(inputs))
    solve_and_exit(with_baseline(with_cluster(options, cluster, replicas), run, asked=baseline), folder, as_json, metrics)
