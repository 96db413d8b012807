"""`pipeline run GRAPH INPUT`, `resume RUN` and `merge RUN...`: options enter; a run folder, a live display and a summary leave.

What solves is imported when it is called, and not for `--help`.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

import click
from msgspec import structs

from pipeline.cli.options import (
    Address,
    HeadedCommand,
    Located,
    RunFolder,
    bound,
    check_reachable,
    graph_options,
    input_options,
    json_option,
    metrics_option,
    notice_options,
    one_run,
    option,
    run_options,
    written_run,
)
from pipeline.cli.terminal import print_line
from pipeline.options import RunOptions


@click.command(cls=HeadedCommand)
@click.argument("graph", type=click.Path(path_type=Path))
@input_options
@run_options("columns", "limit", "random", "shard")
@graph_options
@run_options("samples", "seed", "batch_size", "schedule", "admission", "output", "baseline")
@json_option
@run_options("fail_on_error", "resume", "replicas", "cluster")
@metrics_option
@notice_options
def run(graph: Path, inputs: tuple[str, ...], output: str | None, as_json: bool, metrics_port: Address, **options: Any) -> None:
    """Solve the problems of INPUT, a file or a data set, with GRAPH: a graph file, or the name of a bundled one, such as speccot.

    A run that stopped is continued by `pipeline resume`. Exit codes: see reference/exit-codes in the documentation.
    """
    check_reachable(*inputs)
    folder = None if output is None else written_run(output, new=not options["resume"])
    path = None if folder is None else folder.path
    chosen = RunOptions(graph=graph, input=inputs, output=path, **bound([graph], options, options["batch_size"]))
    import_module("pipeline.cli.solve").solve_and_exit(chosen, folder, as_json, metrics_port)


@click.command(cls=HeadedCommand)
@click.argument("run", type=click.Path(), metavar="RUN")
@run_options("limit", unset=True)
@option("--engines", type=click.Path(path_type=Path), metavar="NAME|FILE", help="Other engines, as for `run`.", heading="Models")
@run_options("batch_size", "baseline", unset=True)
@json_option
@run_options("fail_on_error", "retry_failed", "replicas", "cluster", unset=True)
@metrics_option
@notice_options
def resume(run: str, as_json: bool, metrics_port: Address, baseline: bool, **changed: Any) -> None:
    """Resume the run in folder RUN with the options that it was started with, and with the graph as it was then.

    Finished chains are kept, the others continue from their last answered call. Options for engines, batch size and limit replace those of
    the earlier sessions.
    """
    folder = written_run(run, new=False)
    path = one_run(folder)
    changes = {name: value for name, value in changed.items() if value is not None}
    options = import_module("pipeline.run.prepare").resume_options(path)
    changes |= {"baseline": baseline or options.baseline} | ({"planned_engines": {}} if "engines" in changes else {})
    plan = None if "engines" in changes else import_module("pipeline.store.run_file").RunFile.read(path).plan
    options = structs.replace(options, **changes)
    import_module("pipeline.cli.solve").solve_and_exit(options, folder, as_json, metrics_port, plan)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=RunFolder(), metavar="RUN...")
@option("-o", "--output", type=click.Path(), required=True, metavar="DIR", help="Run folder to write, or its s3:// or gs:// URL.")
def merge(runs: tuple[Located, ...], output: str) -> None:
    """Merge the finished runs of all shards of an input (`pipeline run --shard`) into one run.

    The shards must be of the same graph, engines, input and options; their folders stay as they are.
    """
    run = import_module("pipeline.cluster.merge").merge([run.path for run in runs], written_run(output, new=True).path)
    print_line(f"{output}: {len(runs)} shards, {run.input.rows:,} problems, {run.totals.chains:,} chains")
