"""Whole sweeps on simulated engines: which runs are made, that a sweep goes on where it ended, and processes."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import psutil
import pytest
from msgspec import structs

from pipeline.analysis.curves import read_points
from pipeline.analysis.summary import summarize
from pipeline.errors import EngineDead, Interrupted, RunError, UsageError
from pipeline.options import RunOptions
from pipeline.run.loop import Stop
from pipeline.run.run import Observer
from pipeline.store.run_file import RunFile
from pipeline.study.points import Point, plan_sweep
from pipeline.study.run import WARM_UP, SweepResult, carry_out
from pipeline.study.systems import Matrix, SystemEntry
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S
from tests.support.runs import said, solve_short, write_problems
from tests.support.sweeps import SPECCOT, matrix_of, sweep

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    folder = tmp_path_factory.mktemp("whole")
    return sweep(folder, vary={"candidates": (1, 5)}, schedules=("pipelined", "lockstep"), seeds=(7,), repeats=2)


def names(result: SweepResult) -> list[str]:
    return [point.folder for point in result.points]


def test_every_combination_is_a_run_and_the_target_alone_is_there(whole: SweepResult) -> None:
    curves = ["target", *(f"speccot candidates={n}{how}" for n in (1, 5) for how in ("", ", lockstep"))]
    found = {(point.label.curve, point.label.batch_size) for point in whole.points}
    assert found == {(curve, size) for curve in curves for size in (1, 4)}
    assert len(whole.points) == whole.planned == len(found)  # simulated: no repeats, they would be equal
    assert (whole.exit_code, whole.chains, whole.failed) == (0, 12 * len(found), 0)
    assert sorted(names(whole)) == sorted(path.name for path in (whole.folder / "runs").iterdir())


def test_a_point_is_the_run_that_the_same_options_make(whole: SweepResult, tmp_path: Path) -> None:
    alone = solve_short(tmp_path, settings=("engines.*.text.steps_mean=3", "candidates=5"), batch_size=4, seed=7)
    folder = whole.folder / "runs/speccot_candidates=5_b4_r0"
    assert RunFile.read(folder).wall_time_s == pytest.approx(alone.run.wall_time_s, rel=1e-9)
    assert said(folder) == said(alone)


def test_a_sweep_goes_on_where_it_ended(tmp_path: Path) -> None:
    done = sweep(tmp_path, batch_sizes=(1,))
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "sweep/runs").rglob("*.parquet")}
    with pytest.raises(UsageError, match="already exists"):
        sweep(tmp_path, batch_sizes=(1,))
    half = tmp_path / "sweep/runs/speccot_b4_r0"  # what a killed session leaves
    shutil.copytree(tmp_path / "sweep/runs/speccot_b1_r0", half)
    structs.replace(RunFile.read(half), status="running").write(half)
    seen: list[str] = []
    more = sweep(tmp_path, resume=True, done=lambda number, planned, point, run: seen.append(point.folder))
    assert sorted(names(more)) == sorted([*names(done), *seen])
    assert sorted(seen) == ["speccot_b4_r0", "target_b4_r0"]
    assert RunFile.read(half).options.batch_size == 4
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    with pytest.raises(UsageError, match=r"cannot be resumed: seed is 7, was 0 for '.*'; start anew in another folder"):
        sweep(tmp_path, resume=True, seeds=(7,))
    with pytest.raises(UsageError, match="the problems have changed"):
        sweep(tmp_path, resume=True, input=(str(write_problems(tmp_path, 5)),))


def test_failed_chains_count_and_few_problems_are_said(tmp_path: Path) -> None:
    given: dict[str, Any] = {"input": (str(write_problems(tmp_path, 3, (b'{"problem": 7}',))),), "batch_sizes": (2,)}
    told: list[str] = []
    result = carry_out(plan_sweep(matrix_of(tmp_path, **given)), Observer(tell=told.append), workers=1)
    assert (result.exit_code, result.chains, result.failed) == (3, 8, 2)
    assert "4 problems are few for batch size 2: below 32 the tail decides its speed" in told
    assert sweep(tmp_path, resume=True, fail_on_error=0.25, **given).exit_code == 0


def test_wrong_input_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--resume: name the sweep's folder with --output"):
        sweep(tmp_path, resume=True, output=None)
    with pytest.raises(UsageError, match="the bundled toy models solve only the problems of `arith`"):
        sweep(tmp_path, engines=None, settings=())
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dead_engine_ends_the_sweep_and_leaves_its_points(tmp_path: Path, faulty: Path, workers: int) -> None:
    settings = ("engines.draft.faults.dies_after_calls=100", "engines.draft.max_restarts=0")
    result = sweep(tmp_path, engines=faulty, settings=settings, workers=workers)
    assert ({point.label.system for point in result.points}, result.exit_code) == ({"target"}, 1)
    assert isinstance(result.error, EngineDead)
    assert result.error.role == "draft"


def test_points_in_processes_are_those_of_this_one_and_a_killed_process_is_a_sentence(whole: SweepResult, tmp_path: Path) -> None:
    def kill(number: int, planned: int, point: Point, run: RunFile) -> None:
        for child in workers():
            os.kill(child.pid, signal.SIGKILL)

    given: dict[str, Any] = {"vary": {"candidates": (1, 5)}, "seeds": (7,), "workers": 2}
    ended = sweep(tmp_path, done=kill, **given)
    assert isinstance(ended.error, RunError)
    assert "a process of the sweep is gone" in str(ended.error)
    assert 0 < len(ended.points) < ended.planned
    beside = sweep(tmp_path, resume=True, **given)
    assert (beside.error, workers()) == (None, [])
    for name in names(beside):
        one, other = (RunFile.read(folder / "runs" / name) for folder in (beside.folder, whole.folder))
        assert (one.wall_time_s, one.engine_statistics) == (other.wall_time_s, other.engine_statistics)


def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
    async def interrupt(stop: Stop, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        task_status.started()
        with anyio.fail_after(HANGS_S):
            while not any((tmp_path / "sweep/runs").glob("*/run.json")):
                await anyio.to_thread.run_sync(lambda: None)
        stop.abort()

    study = plan_sweep(matrix_of(tmp_path, input=(str(write_problems(tmp_path, 500)),), settings=()))
    result = carry_out(study, attend=interrupt, workers=2)
    assert isinstance(result.error, Interrupted)
    assert (result.exit_code, workers()) == (130, [])


def workers() -> list[psutil.Process]:
    """The processes of points that this one has started and that run."""
    found = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in found if "spawn_main" in " ".join(child.cmdline())]


@pytest.mark.torch
@pytest.mark.usefixtures("torch_here")
def test_real_engines_are_started_once_and_forget_between_points(tmp_path: Path) -> None:
    shared = RunOptions(graph=SPECCOT, input=(str(ROOT / "datasets/arith/test.parquet"),), random="8", output=tmp_path / "sweep")
    told: list[str] = []
    matrix = Matrix(shared=shared, systems=(SystemEntry(graph=str(SPECCOT)),), batch_sizes=(8,), repeats=2)
    result = carry_out(plan_sweep(matrix), Observer(tell=told.append))
    assert result.exit_code == 0
    assert [sentence for sentence in told if "warming" in sentence] == [f"warming up with {WARM_UP} problems"]
    assert names(result) == ["target_b8_r0", "speccot_b8_r0", "speccot_b8_r1", "target_b8_r1"]
    cached = {name: summarize(result.folder / "runs" / name).engines["target"].cached_share or 0.0 for name in names(result)}
    # The same prompts in a full cache would all be hits; what is cached is what chains share with themselves.
    assert max(cached.values()) < 0.9
    assert max(cached["target_b8_r0"], cached["target_b8_r1"]) < 0.2
    [points] = read_points(result.folder).values()
    assert len({point.run.figures["accuracy"].value for point in points if point.label.system == "target"}) == 1
