"""Runs of replicas whose engines wait in real time rather than compute, and the run of one process that they are compared with."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.analysis.progress import run_state
from pipeline.cli.live import repeated
from pipeline.cluster.replicas import solve_on_replicas
from pipeline.errors import PipelineError
from pipeline.options import RunOptions
from pipeline.run.loop import attended, in_loop
from pipeline.run.prepare import load_plan, prepare
from pipeline.run.run import Observer, SessionResult, run
from tests.support.hanging_together import check_hangs_together
from tests.support.runs import options_of, said, write_problems

CHAINS = 40
ENGINE = (
    "{backend: sim, model: waiting, max_in_flight: 64, parameters: 1, kv_bytes_per_token: 0, kv_cache_tokens: 10000000,"
    " device: {name: nowhere, flops_per_s: .inf, bytes_per_s: .inf, overhead_s: 0.004},"
    " text: {steps_mean: 6, step_tokens_mean: 8, answer_tokens: 8}}"
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replicas")


@pytest.fixture(scope="session")
def alone(folder: Path) -> SessionResult:
    """The run of one process, whose answers all others are to give."""
    return run(waiting(folder, "alone"))


def when(folder: Path, done: int, act: Callable[[], object]) -> AbstractContextManager[None]:
    """Acts once, when so many chains of the run in `folder` are done."""
    acted = threading.Event()

    def look() -> None:
        with suppress(PipelineError):
            if not acted.is_set() and run_state(folder).chains >= done:
                acted.set()
                act()

    return repeated(0.05, look)


def waiting(folder: Path, name: str, **more: Any) -> RunOptions:
    """A run of `CHAINS` problems into `folder`/`name`."""
    engines = folder / "waiting.yaml"
    engines.write_text(f"draft: {ENGINE}\ntarget: {ENGINE}\n")
    return options_of(folder, name, input=write_problems(folder, CHAINS), **{"engines": engines, "batch_size": 4} | more)


def in_real_time(
    options: RunOptions, observer: Observer | None = None, solve: Any = solve_on_replicas, attend: Any = None
) -> SessionResult:
    """The run on replicas, so that something can happen meanwhile."""
    with prepare(options, load_plan(options.graph, options.bound_engines, options.settings), virtual=False) as ready:
        result: SessionResult = in_loop(partial(attended, partial(solve, ready, observer or Observer()), attend), virtual=False)
    return result


def check_whole(result: SessionResult, alone: SessionResult) -> None:
    """The run is finished, and its rows equal those of a run in one process."""
    assert (result.exit_code, result.done, result.error) == (0, CHAINS, None)
    check_hangs_together(result.folder, CHAINS)
    assert said(result) == said(alone)
