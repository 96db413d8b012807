"""Points that run in parallel are those that run one after the other; what goes wrong in a process is one sentence."""

import os
import pickle
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import psutil
import pytest

from pipeline.analysis.points import Point, read_points
from pipeline.errors import EngineDead, Interrupted, RunError
from pipeline.run.loop import Stop
from pipeline.sweep.plan import SweepOptions
from pipeline.sweep.sweep import sweep
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems

SPECCOT = ROOT / "graphs/speccot.yaml"
WAIT_S = 60


def options(folder: Path, name: str = "sweep", **changes: Any) -> SweepOptions:
    given: dict[str, Any] = {"graphs": (SPECCOT,), "engines": (SIM,), "batch_sizes": (1, 4), "output": folder / name, "workers": 2}
    if "input" not in changes:
        given["input"] = write_problems(folder)
    return SweepOptions(**given | changes)


def test_an_error_travels_as_what_it_is() -> None:
    error = EngineDead("draft", "it was closed")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.__dict__) == (EngineDead, str(error), {"role": "draft", "exit_reason": "it was closed"})


@pytest.mark.slow
def test_points_side_by_side_are_those_of_one_after_the_other(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    beside = sweep(options(tmp_path), done=lambda number, planned, point: seen.append((number, planned)))
    alone = sweep(options(tmp_path, "alone", workers=1))
    assert beside.points == alone.points
    assert [point.curve for point in beside.points] == [point.curve for point in alone.points]
    assert read_points(beside.folder / "points.parquet") == beside.points
    assert (beside.exit_code, seen) == (0, [(number, 4) for number in range(1, 5)])
    more = sweep(options(tmp_path, resume=True, batch_sizes=(1, 4, 8)))
    assert [point.batch_size for point in more.points] == [1, 1, 4, 4, 8, 8]
    assert [point for point in more.points if point.batch_size < 8] == beside.points


@pytest.mark.slow
def test_an_error_in_a_point_lets_the_others_under_way_end_and_is_raised(tmp_path: Path, faulty: Path) -> None:
    settings = ("engines.draft.faults.dies_after_calls=100", "engines.draft.max_restarts=0")
    result = sweep(options(tmp_path, engines=(faulty,), settings=settings))
    assert (result.points[0].curve, result.points[0].batch_size) == ("target", 1)
    assert {point.curve for point in result.points} == {"target"}
    assert result.exit_code == 1
    assert isinstance(result.error, EngineDead)
    assert result.error.role == "draft"


@pytest.mark.slow
def test_a_process_that_is_killed_is_one_sentence_and_what_was_finished_stays(tmp_path: Path) -> None:
    given = options(tmp_path, batch_sizes=(1,), input=write_problems(tmp_path, 250))  # the other one takes much longer

    def kill(number: int, planned: int, point: Point) -> None:
        """The first point is finished: kill the process of the other one, which is at its point still."""
        for child in workers():
            os.kill(child.pid, signal.SIGKILL)

    result = sweep(given, done=kill)
    assert [point.curve for point in result.points] == ["target"]
    assert isinstance(result.error, RunError)
    assert str(result.error) == "a process is gone, at the point speccot_pipelined_b1_r0; --workers 1 needs none"
    assert workers() == []
    assert [point.curve for point in sweep(msgspec.structs.replace(given, resume=True)).points] == ["target", "speccot, pipelined"]


@pytest.mark.slow
def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
    async def interrupt(stop: Stop, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        task_status.started()
        await anyio.to_thread.run_sync(wait_for, lambda: any((tmp_path / "sweep/runs").glob("*/run.json")))
        stop.abort()

    result = sweep(options(tmp_path, input=write_problems(tmp_path, 500), batch_sizes=(1, 2)), attend=interrupt)
    assert isinstance(result.error, Interrupted)
    assert (result.exit_code, workers()) == (130, [])


def workers() -> list[psutil.Process]:
    """The processes of points that this one has started and that run."""
    found = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in found if "spawn_main" in " ".join(child.cmdline())]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
