"""`pipeline run GRAPH --input FILE`, `resume RUN` and `merge RUN...`: options enter; a run folder, a live display and a summary leave."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click
from msgspec import structs

from pipeline.analysis.headline.baseline import baseline_folder
from pipeline.cli import live
from pipeline.cli.commands import command, json_option, option
from pipeline.cli.located import Located, RunFolder, problems_of, written_run
from pipeline.cli.options import (
    Address,
    engines_option,
    input_option,
    metrics_options,
    model_option,
    notice_options,
    preset_option,
    run_options,
    settings_option,
    with_models,
    with_preset,
)
from pipeline.cli.signals import restored_handlers, stop_on_signal
from pipeline.cli.summary import print_about, print_summary
from pipeline.cli.terminal import print_error, print_line, print_notice, printed
from pipeline.cluster.merge import merge as merged
from pipeline.errors import Interrupted, MissingExtra, UsageError
from pipeline.remote.url import input_urls, is_url
from pipeline.session.loop import rare_collection
from pipeline.session.observer import Observer
from pipeline.session.options import MAY_DRIFT, RunOptions, resume_options
from pipeline.session.run import SessionResult, Solve
from pipeline.session.run import run as start
from pipeline.store.kept_problems import TABLE as KEPT
from pipeline.sweep.baseline import BaselinePlan, plan_baseline

TAKE_OVER_HELP = "Continue a run at a URL in whose folder a machine was at work that is dead now."
take_over_option = option("--take-over", is_flag=True, help=TAKE_OVER_HELP, heading="Resume")


@command(headed=True)
@click.argument("graph", type=click.Path(path_type=Path))
@input_option
@run_options("columns", "limit", "random", "shard")
@engines_option
@model_option
@settings_option
@preset_option
@run_options("samples", "seed", "batch_size", "schedule", "admission", "output", "keep_input", "baseline")
@json_option
@run_options("fail_on_error", "resume", "retry_failed", "allow_drift")
@take_over_option
@run_options("replicas", "cluster")
@metrics_options
@notice_options
def run(
    graph: Path,
    inputs: tuple[str, ...],
    output: str | None,
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
    bound = with_models([graph], with_preset([graph], options), options["batch_size"])
    chosen = RunOptions(
        graph=graph,
        input=first,
        more_inputs=tuple(more),
        input_urls=input_urls(inputs),
        output=None if folder is None else folder.path,
        **bound,
    )
    solve_and_exit(with_baseline(chosen, output, asked=baseline), folder, as_json, metrics)


@command(headed=True)
@click.argument("run", type=click.Path(), metavar="RUN")
@option(
    "-i", "--input", "input_", type=click.Path(), metavar="FILE", help="Where the problems are now, if they have moved.", heading="Input"
)
@run_options("limit", unset=True)
@option(
    "--engines",
    type=click.Path(path_type=Path),
    metavar="NAME|FILE",
    help="Other engines: a bundled name, a YAML file, or replay:RUN.",
    heading="Models",
)
@run_options("batch_size", "schedule", "admission", "baseline", unset=True)
@json_option
@run_options("fail_on_error", "retry_failed", unset=True)
@take_over_option
@run_options("replicas", "cluster", unset=True)
@metrics_options
@notice_options
def resume(
    run: str,
    input_: str | None,
    retry_failed: bool,
    fail_on_error: float | None,
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
    options = structs.replace(options, **changes, planned_engines=planned, allow_drift=tuple(set(changes) & set(MAY_DRIFT)))
    inputs = options.input_names if input_ is None else (input_,)
    if input_ is not None or (options.input_urls and not (folder.path / KEPT).is_dir()):
        first, *more = problems_of(*inputs)
        options = structs.replace(options, input=first, more_inputs=tuple(more), input_urls=input_urls(inputs))
    solve_and_exit(with_baseline(options, run, asked=baseline), folder, as_json, metrics)


def with_baseline(options: RunOptions, output: str | None, *, asked: bool) -> RunOptions:
    """The options of a run of which a baseline was `asked` for, or on resume is in a folder next to `output`; raises `UsageError`."""
    there = options.resume and options.output is not None and baseline_folder(options.output).is_dir()
    if asked and is_url(output or ""):
        raise UsageError("--baseline: needs a run folder on this machine")
    return structs.replace(options, baseline=asked or options.baseline or there)


@command()
@click.argument("runs", nargs=-1, required=True, type=RunFolder(), metavar="RUN...")
@option("-o", "--output", type=click.Path(), required=True, metavar="DIR", help="Run folder to write, or its s3:// or gs:// URL.")
def merge(runs: tuple[Located, ...], output: str) -> None:
    """Merge the finished runs of all shards of an input (`pipeline run --shard`) into one run.

    The shards must be of the same graph, engines, input and options; their folders stay as they are.
    """
    run = merged([run.path for run in runs], written_run(output, new=True).path)
    print_line(f"{output}: {len(runs)} shards, {run.input.rows:,} problems, {run.totals.chains:,} chains")


def solve_and_exit(options: RunOptions, named: Located | None, as_json: bool, metrics: Address) -> NoReturn:
    """Solve with a live display, print the summary and how to resume, and exit with the run's exit code.

    With `options.baseline` the problems are solved with the target alone as well, once the run is over.
    """
    baseline = plan_baseline(options) if options.baseline else None
    with restored_handlers(), rare_collection(), _quiet_stdout(options), _observed(metrics) as observer:
        solve = partial(start, observer=observer, attend=stop_on_signal, command=sys.argv, carry_out=_carried_out(options))
        results, code = solved(solve, options, baseline)
    folder = named or Located(_folder_of(results[0]))
    if all(each.nothing_to_do for each in results):
        print_notice(f"{folder} is finished: there is nothing to resume")
    if not printed("the summary", partial(print_summary, folder, as_json=as_json)):
        code = code or 1
    for each in results:
        _print_end(each, str(folder))
    if code == 130 and not any(each.exit_code for each in results):
        print_notice(f"interrupted before the target alone began; to resume: pipeline resume {shlex.quote(str(folder))}")
    sys.exit(code)


def solved(
    solve: Callable[[RunOptions], SessionResult], options: RunOptions, baseline: BaselinePlan | None
) -> tuple[list[SessionResult], int]:
    """The results of a run and, where that is over, of its baseline, with the exit code. Raises `Interrupted` before the run began."""
    try:
        results = [solve(options)]
    except Interrupted:
        print_notice("interrupted before any problem was started")
        raise
    if baseline is not None and results[0].error is None:
        for sentence in baseline.notices:
            print_notice(sentence)
        try:
            results.append(solve(baseline.next_to(_folder_of(results[0]))))
        except Interrupted:
            return results, 130
    return results, next((each.exit_code for each in results if each.exit_code), 0)


def _folder_of(result: SessionResult) -> Path:
    assert result.folder is not None, "the run of a command has a folder"
    return result.folder


def _print_end(result: SessionResult, folder: str) -> None:
    """Print what stopped a run early, and how to resume it."""
    if result.error is None:
        return
    if result.run.status == "failed":
        print_error(str(result.error))
    print_notice(f"{result.run.status}; to resume: pipeline resume {shlex.quote(folder)}")


@contextmanager
def _quiet_stdout(options: RunOptions) -> Iterator[None]:
    """Keep stdout for the summary: Ray prints there what its nodes say."""
    if options.cluster is None:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


def _carried_out(options: RunOptions) -> Solve | None:
    """What solves on the replicas of the options; None: engines of this process do. Raises `MissingExtra`."""
    if not options.on_replicas:
        return None
    if options.cluster is None:
        here: Solve = import_module("pipeline.cluster.local").solve_on_this_machine
        return here
    try:
        solve: Solve = import_module("pipeline.cluster.ray_actors").solve_on_ray
    except ImportError as error:
        raise MissingExtra(f"--cluster {options.cluster}", "ray", "ray") from error
    return solve


def _observed(metrics: Address) -> AbstractContextManager[Observer]:
    """What displays the run, and serves its metrics where that was asked for."""
    observer = Observer(starting=live.show_starts, ready=print_about, watch=live.watch, tell=print_notice)
    if metrics is None:
        return nullcontext(observer)
    try:
        served = import_module("pipeline.cli.metrics").metrics_served
    except ImportError as error:
        raise MissingExtra("--metrics-port", "prometheus-client", "metrics") from error
    manager: AbstractContextManager[Observer] = served(*metrics, observer)
    return manager
