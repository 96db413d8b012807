"""One run of a command: its options enter; a run folder, a live display, a summary and an exit code leave."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from msgspec import structs

from pipeline.analysis.headline.baseline import baseline_folder
from pipeline.cli import live
from pipeline.cli.located import Located
from pipeline.cli.options import Address
from pipeline.cli.signals import restored_handlers, stop_on_signal
from pipeline.cli.starting import show_starts
from pipeline.cli.summary import print_about, print_summary
from pipeline.cli.terminal import print_error, print_notice, printing
from pipeline.errors import Interrupted, MissingExtra, UsageError
from pipeline.remote.url import is_url
from pipeline.session.checks.replay import shortfall
from pipeline.session.execute import SessionResult
from pipeline.session.loop import rare_collection
from pipeline.session.observer import Observer
from pipeline.session.options import RunOptions
from pipeline.session.run import Solve
from pipeline.session.run import run as start
from pipeline.sweep.baseline import plan_baseline


def with_baseline(options: RunOptions, output: str | None, *, asked: bool) -> RunOptions:
    """The options of a run of which a baseline was `asked` for, or on resume is in a folder next to `output`; raises `UsageError`."""
    there = options.resume and options.output is not None and baseline_folder(options.output).is_dir()
    if asked and is_url(output or ""):
        raise UsageError("--baseline: needs a run folder on this machine")
    return structs.replace(options, baseline=asked or options.baseline or there)


def solve_and_exit(options: RunOptions, named: Located | None, as_json: bool, metrics: Address) -> NoReturn:
    """Solve with a live display, print the summary and how to resume, and exit with the run's exit code.

    With `options.baseline` the problems are solved with the target alone as well, once the run is over.
    """
    baseline = plan_baseline(options) if options.baseline else None
    with restored_handlers(), rare_collection(), _quiet_stdout(options), _observed(metrics) as observer:
        solve = partial(start, observer=observer, attend=stop_on_signal, command=sys.argv, carry_out=_carried_out(options))
        try:
            results = [solve(options)]
        except Interrupted:
            print_notice("interrupted before any problem was started")
            raise
        folder = results[0].folder
        assert folder is not None, "the run of a command has a folder"
        if baseline is not None and results[0].error is None:
            for sentence in baseline.notices:
                print_notice(sentence)
            results.append(solve(baseline.next_to(folder)))
    if all(each.nothing_to_do for each in results):
        print_notice(f"{named or folder} is finished: there is nothing to resume")
    with printing("the summary") as printed:
        print_summary(named or Located(folder), as_json=as_json)
    for each in results:
        _print_end(each, str(named or folder))
    sys.exit(printed.exit_code(next((each.exit_code for each in results if each.exit_code), 0)))


def _print_end(result: SessionResult, folder: str) -> None:
    """Print what stopped a run early, and how to resume it."""
    if (said := shortfall(result.run)) is not None:
        print_notice(said)
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
    observer = Observer(starting=show_starts, ready=print_about, watch=live.watch, tell=print_notice)
    if metrics is None:
        return nullcontext(observer)
    try:
        served = import_module("pipeline.cli.metrics").metrics_served
    except ImportError as error:
        raise MissingExtra("--metrics-port", "prometheus-client", "metrics") from error
    manager: AbstractContextManager[Observer] = served(*metrics, observer)
    return manager
