"""Carries out a study: its points enter, a run folder for each and `sweep.json` leave. Runs that are compared have the same problems,
engines and seeds.

Real engines stay open for all points on them that follow each other, and their prefix caches are emptied between points. Points on
simulated engines run before them, in processes. A finished point is never run again. Loading and warm-up are in no figure.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from msgspec import Struct, structs

from pipeline.analysis.curves import SWEEP, chains_done
from pipeline.engine import Engine, PrefixCacheReset
from pipeline.engines.registry import open_engines
from pipeline.errors import Interrupted, PipelineError, RunError, UsageError
from pipeline.files import new_file
from pipeline.graph.spec import EngineSpec
from pipeline.run.loop import Attend, Stop, attended, in_loop, rare_collection
from pipeline.run.prepare import check_toys, drift, keep_input, prepare
from pipeline.run.run import Observer, failed_too_often, solve
from pipeline.store.folder import hold_default, hold_output
from pipeline.store.kept_problems import Problems
from pipeline.store.run_file import RunFile
from pipeline.study.points import LEAST_TIMES, Point, Study, same_engines
from pipeline.system.machine import core_count
from pipeline.system.worker_process import end_with_parent, leave_signals
from pipeline.tasks import gather

CACHE_KEPT = "an engine cannot empty its prefix cache: later points may find prompts of earlier ones there and look faster than they are"
WARM_UP = 2
"""Problems that systems solve on real engines before the first point."""
Job = Callable[[], Awaitable[None]]
Done = Callable[[int, int, Point, RunFile], object]
"""Called after each point with the number of finished points, of all points, the point and its run."""


class SweepResult(Struct, frozen=True, kw_only=True):
    """How a study ended."""

    folder: Path
    points: list[Point]
    """The finished points, in the order in which they were planned."""
    planned: int
    """Number of all points."""
    chains: int
    failed: int
    """Chains that failed, of all finished points."""
    error: PipelineError | None = None
    """What kept the other points from being run."""
    fail_on_error: float = 0.0

    @property
    def exit_code(self) -> int:
        """0: all points are there, 1: an engine or the folder was lost, 3: more chains failed than allowed, 130: interrupted."""
        if self.error is not None:
            return 130 if isinstance(self.error, Interrupted) else 1
        return 3 if failed_too_often(self.chains - self.failed, self.failed, self.fail_on_error) else 0


def carry_out(
    study: Study, observer: Observer | None = None, done: Done | None = None, *, attend: Attend | None = None, workers: int | None = None
) -> SweepResult:
    """Run every point of `study` that is not finished yet. Errors in the options are raised before an engine starts.

    `observer` observes each run, `done` is called after each point. `attend` runs alongside and may stop it. Simulated points run in up to
    `workers` processes, by default as many as there are cores; with one, in this process.
    """
    options, observer, error = study.folder, observer or Observer(), None
    output, resume = options.output, options.resume
    if resume and output is None:
        raise UsageError("--resume: name the sweep's folder with --output")
    held = hold_default(Path("sweeps"), study.name) if output is None else hold_output(output, SWEEP, resume=resume)
    with held as folder, TemporaryDirectory(prefix="problems-") as place:
        work = _Work(study.points, folder, observer, done or (lambda *about: None), Path(place))
        for sentence in study.told:
            observer.tell(sentence)
        _check_finished(work)
        with new_file(folder / SWEEP) as draft:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(study.card), indent=2) + b"\n")
        try:
            for job, virtual in _jobs(work, workers or core_count()):
                in_loop(partial(attended, partial(_to_its_end, job), attend), virtual=virtual)
        except PipelineError as failure:
            if not work.finished and not isinstance(failure, Interrupted):  # an interrupt explains how to resume
                raise
            error = failure
    totals = [RunFile.read(work.run_folder(point)).totals for point in work.finished]
    return SweepResult(
        folder=folder,
        points=work.finished,
        planned=len(work.points),
        chains=sum(each.chains for each in totals),
        failed=sum(each.chains_failed for each in totals),
        error=error,
        fail_on_error=options.fail_on_error,
    )


class _Work:
    """A study in progress: its folder, its problems, and the points that are finished."""

    def __init__(self, points: list[Point], folder: Path, observer: Observer, done: Done, place: Path) -> None:
        """Read each input once, into a folder in `place`; raises `InputError`, and `UsageError` where toy models get others' problems."""
        self.points, self.folder, self.observer, self._done = points, folder, observer, done
        self._finished = {point.folder for point in points if chains_done(self.run_folder(point)) is not None}
        self._problems, largest = dict[Any, Problems](), max(point.options.max_live for point in points)
        for point in points:
            if point.rows not in self._problems:
                (kept := place / str(len(self._problems))).mkdir()
                problems = self._problems[point.rows] = keep_input(point.options, kept)
                for sentence in problems.remarks:
                    observer.tell(sentence)
                if (rows := problems.counts(1).rows) < (least := LEAST_TIMES * largest):
                    observer.tell(f"{rows} problems are few for batch size {largest}: below {least} the tail decides its speed")
            check_toys(point.plan, point.options, self.problems(point))

    @property
    def finished(self) -> list[Point]:
        """The points that are finished, in the order in which they were planned."""
        return [point for point in self.points if point.folder in self._finished]

    def problems(self, point: Point) -> Problems:
        """The problems of a point."""
        return self._problems[point.rows]

    def run_folder(self, point: Point) -> Path:
        """The folder of the run of a point."""
        return self.folder / "runs" / point.folder

    def done(self, point: Point) -> None:
        """Tell of a point that is finished now."""
        self._finished.add(point.folder)
        self._done(len(self._finished), len(self.points), point, RunFile.read(self.run_folder(point)))


def _check_finished(work: _Work) -> None:
    """Raise `UsageError` where the run of a finished point was another one than it would be now."""
    first = {(point.label.curve, point.label.data, point.label.seed): point for point in reversed(work.finished)}
    for point in first.values():
        with TemporaryDirectory(prefix="problems-") as place:
            options = structs.replace(point.options, output=Path(place))
            with prepare(options, point.plan, work.problems(point), virtual=point.virtual) as now:
                if found := [clause for _, clause in drift(RunFile.read(work.run_folder(point)), now.record)]:
                    what = f"cannot be resumed: {'; '.join(found)} for {point.label.curve!r}; start anew in another folder"
                    raise UsageError(f"{work.folder}: {what}")


def _jobs(work: _Work, workers: int) -> Iterator[tuple[Job, bool]]:
    """What runs the points that are not finished yet, simulated ones first, each with whether its time is virtual."""
    finished = {point.folder for point in work.finished}
    missing = [point for point in work.points if point.folder not in finished]
    simulated = [point for point in missing if point.virtual]  # each has its own clock: the order does not matter
    if (count := min(workers, len(simulated))) > 1:
        yield partial(_in_processes, work, simulated, count), False
    else:
        yield from ((partial(_run_here, work, [point]), True) for point in simulated)
    for engines, points in same_engines([point for point in missing if not point.virtual]):
        yield partial(_run_on, work, engines, points), False


async def _to_its_end(job: Job, stop: Stop) -> bool:
    """Carry out a job; what `attended` interrupts has no result."""
    await job()
    return True


async def _in_processes(work: _Work, points: Sequence[Point], count: int) -> None:
    """Run simulated points in `count` processes; the first error ends all of them."""
    pool = ProcessPoolExecutor(count, get_context("spawn"), _begin)

    async def finish(point: Point, run: Future[None]) -> None:
        try:
            await asyncio.wrap_future(run)
        except BrokenProcessPool as error:
            raise RunError("a process of the sweep is gone; was it out of memory?") from error
        work.done(point)

    try:
        runs = [(point, pool.submit(_run_alone, point, work.problems(point), work.run_folder(point))) for point in points]
        await gather([partial(finish, *each) for each in runs])
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in active_children():
            process.kill()
            process.join()


def _begin() -> None:
    """Leave signals to the parent of this process, and end when it does."""
    leave_signals()
    end_with_parent()


def _run_alone(point: Point, problems: Problems, folder: Path) -> None:
    """Run a simulated point in this process."""
    with rare_collection():
        in_loop(partial(_run_point, point, problems, folder, Observer()), virtual=True)


async def _run_on(work: _Work, specs: Mapping[str, EngineSpec], points: Sequence[Point]) -> None:
    """Run points on the same real engines one after the other, after every stage on every engine ran for a few problems: kernels are
    compiled then."""
    warm = set[tuple[type, str | None]]()
    async with open_engines(specs, work.observer.starting()) as engines:
        work.observer.tell(f"warming up with {WARM_UP} problems")
        with TemporaryDirectory(prefix="warm-up-", dir=work.folder) as folder:
            for number, point in enumerate(points):
                stages = {(type(stage.spec), stage.spec.role) for stage in point.plan.stages()}
                if not stages <= warm:
                    options = structs.replace(point.options, limit=min(WARM_UP, point.options.limit or WARM_UP), random=None)
                    place = Path(folder) / str(number)
                    await _run_point(structs.replace(point, options=options), None, place, work.observer, engines)
                    warm |= stages
        await _run_here(work, points, engines)


async def _run_here(work: _Work, points: Sequence[Point], engines: Mapping[str, Engine] | None = None) -> None:
    """Run points one after the other in this process, on their own engines or on open ones, whose prefix caches are emptied before each."""
    for point in points:
        used = [engine for role, engine in (engines or {}).items() if role in point.plan.engines]
        for engine in used:
            if isinstance(engine, PrefixCacheReset):
                await engine.reset_prefix_cache()
            else:
                work.observer.tell(CACHE_KEPT)
        await _run_point(point, work.problems(point), work.run_folder(point), work.observer, engines)
        work.done(point)


async def _run_point(
    point: Point, problems: Problems | None, folder: Path, observer: Observer, engines: Mapping[str, Engine] | None = None
) -> None:
    """Run one point in a new `folder`, on open `engines` or its own; raises the error that ends it early."""
    shutil.rmtree(folder, ignore_errors=True)
    with prepare(structs.replace(point.options, output=folder), point.plan, problems, virtual=point.virtual) as run:
        result = await solve(run, observer, engines=engines)
    if result.error is not None:
        raise result.error
