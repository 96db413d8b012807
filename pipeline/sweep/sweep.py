"""Runs a sweep: options enter, a run for each point and a file of points leave. All runs have the same problems, engines and seeds.

Real engines are opened once for all points on them that follow each other, and their prefix caches are emptied between points; on
simulated ones points run side by side. A finished point is never run again. Every point is written to `points.parquet` when it is
finished. Loading and warm-up are in no figure.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from pipeline.analysis.points import Point, read_points, write_points
from pipeline.errors import Interrupted, PipelineError, UsageError
from pipeline.files import new_file
from pipeline.graph.plan import settings_of
from pipeline.graph.spec import EngineSpec
from pipeline.session.loop import Stop, in_loop
from pipeline.session.notices import gpu_notices, notices
from pipeline.session.observer import Attend, Observer
from pipeline.session.run import attended, failed_too_often
from pipeline.store.folder import hold_default, hold_output
from pipeline.store.run_file import Host, host, versions
from pipeline.sweep.plan import PlannedPoint, SweepOptions, SweepSystem, parts
from pipeline.sweep.points import PreparedSweep, SweepRunner, prepare_sweep
from pipeline.sweep.side_by_side import run_side_by_side
from pipeline.sweep.systems import baselines, read_systems, unequal_rules

POINTS, SWEEP = "points.parquet", "sweep.json"

Done = Callable[[int, int, Point], object]
"""Called after each point with the number of finished points, of all points, and the point."""


class SweptSystem(Struct, frozen=True, kw_only=True):
    """A system in `sweep.json`."""

    engines_file: str | None
    settings: tuple[str, ...]
    """All settings of its graph and its engines, as `NAME=VALUE`: what a run of it has to be given as `--set`."""
    engines: dict[str, dict[str, Any]]
    """The engines that it uses, by role."""


class SweepFile(Struct, frozen=True, kw_only=True):
    """The content of `sweep.json`: what all points share; a sweep can be resumed only with the same."""

    input_sha256: str
    columns: dict[str, str]
    limit: int | None
    random: str | None = None
    samples: int
    seed: int
    admission: str
    order: str
    engines: dict[str, dict[str, Any]]
    """Of the systems that are compared with the target alone, by role; of the last engines file where there are several."""
    settings: tuple[str, ...]
    systems: dict[str, SweptSystem]
    """By label."""
    graphs: dict[str, str]
    """Digest of each system's plan, by its label."""
    simulated: bool
    host: Host
    versions: dict[str, str]


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
    """Run every point that is not finished yet. Errors in the options are raised before an engine starts.

    `observer` observes each run, `done` is called after each point. `attend` runs alongside the sweep and may stop it.
    """
    systems, observer = read_systems(options), observer or Observer()
    error: PipelineError | None = None
    with held_folder(options, systems) as folder:
        prepared = prepare_sweep(options, systems, folder)
        said = [each for system in systems for each in (*notices(system.plan), *gpu_notices(system.plan))]
        for sentence in dict.fromkeys([*said, *baselines(systems), *unequal_rules(systems)]):
            observer.tell(sentence)
        finished = FinishedPoints(prepared, start_or_resume(prepared), done or (lambda *about: None))
        try:
            run_missing(prepared, finished, observer, attend)
        except PipelineError as failure:
            if not finished.points:
                raise
            error = failure
    points = [finished.points[each.name] for each in prepared.planned_points if each.name in finished.points]
    return SweepResult(
        folder=prepared.folder, points=points, planned=len(prepared.planned_points), error=error, fail_on_error=options.fail_on_error
    )


def run_missing(prepared: PreparedSweep, finished: "FinishedPoints", observer: Observer, attend: Attend | None) -> None:
    """Run the points that are not finished yet; raises the error that ends a run early, `Interrupted` included."""
    missing = [each for each in prepared.planned_points if each.name not in finished.points]
    processes = min(prepared.processes, len(missing))
    if processes > 1:
        _carried_out(partial(run_side_by_side, prepared, missing, processes, finished.add), attend, virtual=False)
        return
    runner = SweepRunner(prepared, observer, finished.add)
    # Each point on simulated engines has engines and a clock of its own, so that it does not depend on the order.
    for part in [[each] for each in missing] if prepared.virtual_time else parts(missing):
        _carried_out(partial(runner.run, part), attend, virtual=prepared.virtual_time)


def _carried_out(work: Callable[[], Awaitable[None]], attend: Attend | None, *, virtual: bool) -> None:
    """Carry out `work` in an event loop with `attend` alongside it; raises its `PipelineError`, or `Interrupted` where that ended it."""

    async def whole(stop: Stop) -> bool:
        await work()
        return True

    in_loop(partial(attended, whole, Stop(), attend), virtual=virtual)


@contextmanager
def held_folder(options: SweepOptions, systems: list[SweepSystem]) -> Iterator[Path]:
    """Hold the folder of a sweep until the end, by default a new one; raises `UsageError` where it is in use or cannot be made."""
    if options.output is not None:
        with hold_output(options.output, SWEEP, resume=options.resume):
            yield options.output
        return
    if options.resume:
        raise UsageError("--resume: name the sweep's folder with --output")
    with hold_default(Path("sweeps"), systems[-1].plan.name) as folder:
        yield folder


def start_or_resume(prepared: PreparedSweep) -> dict[str, Point]:
    """Write `sweep.json`, after a check that it is still the same where it is there; returns the finished points by name."""
    options, path, points = prepared.options, prepared.folder / SWEEP, prepared.folder / POINTS
    shared = SweepFile(
        input_sha256=prepared.fingerprint.sha256,
        columns=options.columns,
        limit=options.limit,
        random=options.random,
        samples=options.samples,
        seed=options.seed,
        admission=options.admission,
        order=options.order,
        engines=_settings_of(prepared.systems[-1].engines),
        settings=options.settings,
        systems={system.label: _swept(system) for system in prepared.systems},
        graphs={system.label: system.plan.digest for system in prepared.systems},
        simulated=prepared.virtual_time,
        host=host(),
        versions=versions(),
    )
    there: list[Point] = []
    if path.is_file():
        _check_same(path, msgspec.json.decode(msgspec.json.encode(shared), type=SweepFile))
        there = read_points(points) if points.is_file() else []
    with new_file(path) as draft:
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(shared), indent=2) + b"\n")
    return {PlannedPoint(system=prepared.systems[0], coordinates=point).name: point for point in there}


def _swept(system: SweepSystem) -> SweptSystem:
    file = None if system.engines_file is None else str(system.engines_file)
    return SweptSystem(engines_file=file, settings=system.settings, engines=_settings_of(system.plan.engines))


def _settings_of(engines: Mapping[str, EngineSpec]) -> dict[str, dict[str, Any]]:
    return {role: settings_of(spec) for role, spec in engines.items()}


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


def _check_same(path: Path, new: SweepFile) -> None:
    """Raise `UsageError` where `new` differs from the `sweep.json` in `path`, so that the sweep cannot be resumed."""
    try:
        old = msgspec.json.decode(path.read_bytes(), type=SweepFile)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is not a sweep.json of this version: {error}") from error
    for name in ("input_sha256", "columns", "limit", "random", "samples", "seed", "settings", "admission", "order"):
        if getattr(old, name) != getattr(new, name):
            raise UsageError(f"{path}: cannot be resumed: {name} is {getattr(new, name)}, was {getattr(old, name)}; start a new sweep")
    for label in old.graphs.keys() & new.graphs.keys():
        ours, theirs = new.systems[label].engines, old.systems[label].engines
        if other := next(_differences(ours, theirs), None):
            raise UsageError(f"{path}: cannot be resumed: {other} for {label!r}; start a new sweep")
        if old.graphs[label] != new.graphs[label]:
            raise UsageError(f"{path}: cannot be resumed: the graph of {label!r} has changed; start a new sweep")


def _differences(ours: dict[str, dict[str, Any]], theirs: dict[str, dict[str, Any]]) -> Iterator[str]:
    """How the engines `ours` differ from `theirs`, both by role, as clauses."""
    for role, settings in ours.items():
        for name, value in settings.items():
            if (was := theirs.get(role, {}).get(name)) != value:
                yield f"engines.{role}.{name} is {value}, was {was}"
