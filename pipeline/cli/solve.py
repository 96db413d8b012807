"""What `pipeline run` and `resume` do: options enter; a run folder, a live display and a summary leave."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from msgspec import structs

from pipeline.analysis.headline import baseline_folder
from pipeline.cli import live
from pipeline.cli.located import Located
from pipeline.cli.options import (
    Address,
)
from pipeline.cli.signals import restored_handlers, stop_on_signal
from pipeline.cli.summary import print_about, print_summary
from pipeline.cli.terminal import print_error, print_notice, printed
from pipeline.errors import Interrupted, MissingExtra, UsageError
from pipeline.graph.plan import Plan
from pipeline.options import RunOptions
from pipeline.remote.url import is_url
from pipeline.run.loop import rare_collection
from pipeline.run.observer import Observer
from pipeline.run.run import SessionResult
from pipeline.run.run import run as start
from pipeline.store.kept_problems import solved_problems
from pipeline.sweep.baseline import BaselinePlan, plan_baseline


def with_baseline(options: RunOptions, output: str | None, *, asked: bool) -> RunOptions:
    """The options of a run of which a baseline was `asked` for, or on resume is in a folder next to `output`; raises `UsageError`."""
    there = options.resume and options.output is not None and baseline_folder(options.output).is_dir()
    if asked and is_url(output or ""):
        raise UsageError("--baseline: needs a run folder on this machine")
    return structs.replace(options, baseline=asked or options.baseline or there)


def solve_and_exit(options: RunOptions, named: Located | None, as_json: bool, metrics: Address, plan: Plan | None = None) -> NoReturn:
    """Solve, by default the plan of the options, with a live display, print the summary and how to resume, and exit with the run's code.

    With `options.baseline` the problems are solved with the target alone as well, once the run is over.
    """
    baseline = plan_baseline(options) if options.baseline else None
    with restored_handlers(), rare_collection(), _quiet_stdout(options), _observed(metrics, options) as observer:
        solve = partial(start, observer=observer, attend=stop_on_signal, command=sys.argv)
        results, code = solved(solve, options, baseline, plan)
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
    solve: Callable[..., SessionResult], options: RunOptions, baseline: BaselinePlan | None, plan: Plan | None = None
) -> tuple[list[SessionResult], int]:
    """The results of a run and, where that is over, of its baseline, with the exit code. Raises `Interrupted` before the run began."""
    try:
        results = [solve(options, plan=plan)]
    except Interrupted:
        print_notice("interrupted before any problem was started")
        raise
    if baseline is not None and results[0].error is None:
        for sentence in baseline.notices:
            print_notice(sentence)
        try:
            folder = _folder_of(results[0])
            results.append(solve(baseline.next_to(folder), problems=solved_problems(folder, results[0].run)))
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


def _observed(metrics: Address, options: RunOptions) -> AbstractContextManager[Observer]:
    """What displays the run, and serves its metrics where that was asked for."""
    observer = Observer(starting=live.show_starts, ready=print_about, watch=live.watch, tell=print_notice)
    if metrics is None:
        return nullcontext(observer)
    if options.replicas > 1 or options.cluster is not None:
        raise UsageError("--metrics-port: replicas are other processes, which serve none; `pipeline show` and `view` read them")
    try:
        served = import_module("pipeline.cli.metrics").metrics_served
    except ImportError as error:
        raise MissingExtra("--metrics-port", "prometheus-client", "metrics") from error
    manager: AbstractContextManager[Observer] = served(*metrics, observer)
    return manager
