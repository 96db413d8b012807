"""What `pipeline run` and `resume` do: options enter; a run folder, a live display and a summary leave."""

import shlex
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from msgspec import structs

from pipeline.analysis.headline import about, baseline_folder
from pipeline.cli import live
from pipeline.cli.options import Address, Located
from pipeline.cli.show import print_summary
from pipeline.cli.terminal import output, print_notice
from pipeline.errors import Interrupted, UsageError, require
from pipeline.graph.plan import Plan
from pipeline.options import RunOptions
from pipeline.run.loop import rare_collection
from pipeline.run.prepare import Prepared
from pipeline.run.run import Observer, SessionResult
from pipeline.run.run import run as start
from pipeline.store.kept_problems import solved_problems
from pipeline.study.systems import System, run_baseline


def solve_and_exit(options: RunOptions, named: Located | None, as_json: bool, metrics: Address, plan: Plan | None = None) -> NoReturn:
    """Solve, by default the plan of the options, with a live display, print the summary and how to resume, and exit with the run's code.

    With `options.baseline`, and on resume where a baseline lies next to the run, the problems are solved with the target alone as well,
    once the run is over. Raises `UsageError`.
    """
    there = options.resume and options.output is not None and baseline_folder(options.output).is_dir()
    options = structs.replace(options, baseline=options.baseline or there)
    if options.baseline and named is not None and named.url:
        raise UsageError("--baseline: needs a run folder on this machine")
    baseline = run_baseline(options) if options.baseline else None
    with live.restored_handlers(), rare_collection(), _observed(metrics, options) as observer:
        solve = partial(start, observer=observer, attend=live.stop_on_signal, command=sys.argv)
        results, code = solved(solve, options, baseline, plan)
    folder = named or Located(_folder_of(results[0]))
    if all(each.nothing_to_do for each in results):
        print_notice(f"{folder} is finished: there is nothing to resume")
    if not output().prints("the summary", partial(print_summary, folder, as_json=as_json)):
        code = code or 1
    resumed = f"to resume: pipeline resume {shlex.quote(str(folder))}"
    for each in results:
        if each.error is not None:
            if each.run.status == "failed":
                output().error(str(each.error))
            print_notice(f"{each.run.status}; {resumed}")
    if code == 130 and not any(each.exit_code for each in results):
        print_notice(f"interrupted before the target alone began; {resumed}")
    sys.exit(code)


def solved(
    solve: Callable[..., SessionResult], options: RunOptions, baseline: System | None, plan: Plan | None = None
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


def print_about(run: Prepared) -> None:
    """Say what a run will solve with what, and in which folder, before its engines are opened."""
    chosen, plan, state = run.options, run.plan, run.resume_state
    said = about(plan.name, run.record.input.rows, run.record.input.chains, plan.models, chosen.max_live, toy=plan.has_toy_models)
    replicas = ""
    if chosen.replicas > 1:
        replicas = f" on each of {chosen.replicas} replicas" if run.on_replicas else " in one process, as its shards are merged"
    over = f", {state.totals.chains:,} are over already" if state.totals.chains else ""
    print_notice(f"{said}{replicas}{over}, in {run.folder}")


def _observed(metrics: Address, options: RunOptions) -> AbstractContextManager[Observer]:
    """What displays the run, and serves its metrics where that was asked for."""
    observer = Observer(starting=live.Starts, ready=print_about, watch=live.watch, tell=output().notice)
    if metrics is None:
        return nullcontext(observer)
    if options.replicas > 1 or options.cluster is not None:
        raise UsageError("--metrics-port: replicas are other processes, which serve none; `pipeline show` and `view` read them")
    require("--metrics-port", "metrics", "prometheus_client")
    manager: AbstractContextManager[Observer] = import_module("pipeline.cli.metrics").metrics_served(*metrics, observer)
    return manager
