"""Runs a sweep or a study: options or a plan enter, a run for each point and a file of points leave. Runs that are compared have the same
problems, engines and seeds.

Real engines are opened once for all points on them that follow each other, and their prefix caches are emptied between points. Points on
simulated engines run before them, side by side in processes.

A finished point is never run again, and is in `points.parquet` as soon as it is finished. Loading and warm-up are in no figure.
"""

from asyncio import wrap_future
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import msgspec
from msgspec import Struct, structs

from pipeline.analysis.points import Point, read_points, write_points
from pipeline.analysis.studies import SWEEP, read_study
from pipeline.engines.registry import notices
from pipeline.errors import Interrupted, PipelineError, RunError, UsageError
from pipeline.files import new_file
from pipeline.run.loop import Attend, Stop, attended, in_loop, rare_collection
from pipeline.run.observer import Observer
from pipeline.run.prepare import drift
from pipeline.run.run import failed_too_often
from pipeline.store.folder import FILE, hold_default, hold_output
from pipeline.store.run_file import RunFile, versions
from pipeline.sweep.plan import PlannedPoint, SweepOptions, SweepPlan, parts
from pipeline.sweep.points import Keep, PreparedSweep, SweepRunner, prepare_sweep
from pipeline.sweep.systems import plan_sweep
from pipeline.system.machine import core_count
from pipeline.system.worker_process import end_with_parent, leave_signals

POINTS = "points.parquet"

Done = Callable[[int, int, Point], object]
"""Called after each point with the number of finished points, of all points, and the point."""


class SweepResult(Struct, frozen=True, kw_only=True):
    """How a sweep ended."""

    folder: Path
    points: list[Point]
    """The finished points, in the order in which they were planned."""
    planned: int
    """Number of all points."""
    error: PipelineError | None = None
    """What kept the other points from being run."""
    fail_on_error: float = 0.0
    """The share of all chains that may fail."""

    @property
    def failed(self) -> int:
        """Chains that failed, of all finished points."""
        return sum(point.failed for point in self.points)

    @property
    def exit_code(self) -> int:
        """0: all points are there, 1: an engine or the folder was lost, 3: more chains failed than allowed, 130: interrupted."""
        if self.error is not None:
            return 130 if isinstance(self.error, Interrupted) else 1
        done = sum(point.chains for point in self.points) - self.failed
        return 3 if failed_too_often(done, self.failed, self.fail_on_error) else 0


def sweep(
    options: SweepOptions, observer: Observer | None = None, done: Done | None = None, *, attend: Attend | None = None
) -> SweepResult:
    """Run every point of a sweep that is not finished yet; as `carry_out`."""
    return carry_out(plan_sweep(options), observer, done, attend=attend)


def carry_out(plan: SweepPlan, observer: Observer | None = None, done: Done | None = None, *, attend: Attend | None = None) -> SweepResult:
    """Run every point of `plan` that is not finished yet. Errors in the options are raised before an engine starts.

    `observer` observes each run, `done` is called after each point. `attend` runs alongside the sweep and may stop it.
    """
    observer = observer or Observer()
    error: PipelineError | None = None
    with held_folder(plan) as folder:
        prepared = prepare_sweep(plan, folder)
        said = [each for system in plan.systems for each in notices(system.plan.engines)]
        for sentence in dict.fromkeys([*said, *plan.remarks]):
            observer.tell(sentence)
        finished = FinishedPoints(prepared, start_or_resume(prepared), done or (lambda *about: None))
        try:
            run_missing(prepared, finished, observer, attend)
        except PipelineError as failure:
            if not finished.points and not isinstance(failure, Interrupted):  # an interrupt explains how to resume
                raise
            error = failure
    points = [finished.points[each.name] for each in plan.points if each.name in finished.points]
    return SweepResult(folder=folder, points=points, planned=len(plan.points), error=error, fail_on_error=plan.options.fail_on_error)


def run_missing(prepared: PreparedSweep, finished: "FinishedPoints", observer: Observer, attend: Attend | None) -> None:
    """Run the points that are not finished yet, simulated ones first; raises the error that ends a run early, `Interrupted` included."""
    missing = [each for each in prepared.planned_points if each.name not in finished.points]
    simulated = [each for each in missing if each.system.virtual]  # each has its own clock: the order does not matter
    count = min(prepared.options.workers or core_count(), len(simulated))
    alone = SweepRunner(prepared, observer, finished.add)
    if count > 1:
        _carried_out(partial(_in_processes, prepared, simulated, count, finished.add), attend, virtual=False)
        simulated = []
    for part in ([each] for each in simulated):
        _carried_out(partial(alone.run, part), attend, virtual=True)
    for part in parts([each for each in missing if not each.system.virtual]):
        _carried_out(partial(alone.run, part), attend, virtual=False)


async def _in_processes(prepared: PreparedSweep, points: Sequence[PlannedPoint], count: int, keep: Keep) -> None:
    """Run simulated points in `count` processes, and `keep` each when it is finished. After an error none begins, those under way end, and
    it is raised."""
    pool = ProcessPoolExecutor(count, get_context("spawn"), _begin)
    waiting, errors = deque(points), list[PipelineError]()

    async def simulate() -> None:
        while waiting:
            planned = waiting.popleft()
            alone = structs.replace(prepared.plan, points=[planned])
            try:
                keep(planned, await wrap_future(pool.submit(_simulated, alone, prepared.folder)))
            except (BrokenProcessPool, PipelineError) as error:
                lost = RunError(f"a process is gone, at the point {planned.name}; --workers 1 needs none")
                errors.append(error if isinstance(error, PipelineError) else lost)
                waiting.clear()

    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(simulate)
    finally:
        for process in active_children():
            process.kill()
        pool.shutdown()
    if errors:
        raise errors[0]


def _simulated(plan: SweepPlan, folder: Path) -> Point:
    """Run the one point of `plan` in this process."""
    found: list[Point] = []
    runner = SweepRunner(prepare_sweep(plan, folder), Observer(), lambda planned, point: found.append(point))
    with rare_collection():
        in_loop(partial(runner.run, plan.points), virtual=True)
    return found[0]


def _begin() -> None:
    """Leave signals to the parent of this process, and end when it does."""
    leave_signals()
    end_with_parent()


def _carried_out(work: Callable[[], Awaitable[None]], attend: Attend | None, *, virtual: bool) -> None:
    """Carry out `work` in an event loop with `attend` alongside it; raises its `PipelineError`, or `Interrupted` where that ended it."""

    async def whole(stop: Stop) -> bool:
        await work()
        return True

    in_loop(partial(attended, whole, attend), virtual=virtual)


@contextmanager
def held_folder(plan: SweepPlan) -> Iterator[Path]:
    """Hold the folder of a sweep until the end, by default a new one; raises `UsageError` where it is in use or cannot be made."""
    options = plan.options
    if options.output is not None:
        with hold_output(options.output, SWEEP, resume=options.resume):
            yield options.output
        return
    if options.resume:
        raise UsageError("--resume: name the sweep's folder with --output")
    with hold_default(Path("sweeps"), plan.name) as folder:
        yield folder


def start_or_resume(prepared: PreparedSweep) -> dict[str, Point]:
    """The finished points by name; `sweep.json` then says what a run of each system has to be given as `--set`.

    Raises `UsageError` in a study's folder for a sweep, and the other way round, and where the runs of finished points would be others now.
    """
    file = prepared.folder / POINTS
    finished = {point.folder: point for point in read_points(file)} if file.is_file() else {}
    if (prepared.folder / SWEEP).is_file() and (read_study(prepared.folder) is None) != (prepared.plan.study is None):
        raise UsageError(f"{prepared.folder}: a study and a sweep cannot share a folder; choose another directory with --output")
    done = [planned for planned in reversed(prepared.planned_points) if planned.name in finished]
    first = {(planned.system.label, planned.coordinates.data, planned.coordinates.seed): planned for planned in done}
    for planned in first.values():
        _check_same(prepared, planned)
    shared: dict[str, Any] = {"systems": {system.label: system.settings for system in prepared.plan.systems}, "versions": versions()}
    if prepared.plan.study is not None:
        shared["study"] = prepared.plan.study
    with new_file(prepared.folder / SWEEP) as draft:
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(shared), indent=2) + b"\n")
    return finished


def _check_same(prepared: PreparedSweep, planned: PlannedPoint) -> None:
    """Raise `UsageError` where the run of a finished point was another one than it would be now."""
    folder = prepared.folder / "runs" / planned.name
    if not (folder / FILE).is_file():
        return
    with TemporaryDirectory(prefix="problems-") as place, prepared.run_of(planned, Path(place), **planned.options) as now:
        found = [clause for _, clause in drift(RunFile.read(folder), now.record)]
    if found:
        what = f"{'; '.join(found)} for {planned.system.label!r}"
        raise UsageError(f"{prepared.folder}: cannot be resumed: {what}; start anew in another folder")


class FinishedPoints:
    """The finished points of a sweep, by name, which are on disk as soon as they are here."""

    def __init__(self, prepared: PreparedSweep, points: dict[str, Point], done: Done) -> None:
        self.points = points
        self._folder, self._done = prepared.folder, done
        self._places = {each.name: place for place, each in enumerate(prepared.planned_points)}

    def add(self, planned: PlannedPoint, point: Point) -> None:
        """Take in `point`, and write all points to `points.parquet`, in the order in which they were planned."""
        self.points[planned.name] = point
        self.points = dict(sorted(self.points.items(), key=lambda item: self._places.get(item[0], -1)))
        write_points(self._folder / POINTS, list(self.points.values()))
        self._done(sum(name in self._places for name in self.points), len(self._places), point)
