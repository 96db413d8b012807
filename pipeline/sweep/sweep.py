"""Runs a sweep: options enter, a run for each point and a file of points leave. All runs have the same problems, engines and seeds.

Real engines are opened once, and their prefix caches are emptied between points; on simulated ones points run side by side. A finished
point is never run again. Every point is written to `points.parquet` when it is finished. Loading and warm-up are in no figure.
"""

import shutil
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import msgspec
from msgspec import Struct

from pipeline.analysis.points import Point, point_of_run, read_points, write_points
from pipeline.bundled import find_file
from pipeline.data.problems import Fingerprint, Problems, open_problems
from pipeline.engine import Engine, PrefixCacheReset
from pipeline.engines.registry import open_engines, virtual_time
from pipeline.errors import GraphError, Interrupted, PipelineError, UsageError
from pipeline.files import new_file
from pipeline.graph.plan import Plan, settings_of
from pipeline.graph.spec import EngineSpec
from pipeline.machine import cores
from pipeline.session.claim import Claim
from pipeline.session.loop import in_loop
from pipeline.session.options import RunOptions
from pipeline.session.order import Thoughts, earlier_thoughts
from pipeline.session.preflight import Preflight, load_plan, notices
from pipeline.session.replay import check_replay
from pipeline.session.run import Attend, Observer, solve_on, take_up
from pipeline.session.stop import Stop
from pipeline.sweep.lower_bound import RecordingEngine, all_requests, recording, replay_s
from pipeline.sweep.plan import PlannedPoint, SweepOptions, System, check_varied, combinations, planned_points
from pipeline.sweep.side_by_side import Keep, run_side_by_side
from pipeline.tasks import unwrapped
from pipeline.trace.folder import hold, hold_default, hold_output
from pipeline.trace.run_file import Host, RunFile, host, versions

WARM_UP_PROBLEMS = 32
"""Problems that every system solves before the first point."""
MOST_REPLAYED = 50_000
"""Calls of one engine that are held to measure the lower bound; for a run with more it is not measured."""
POINTS, SWEEP = "points.parquet", "sweep.json"

Done = Callable[[int, int, Point], object]
"""Called after each point with the number of finished points, of all points, and the point."""


class SweepFile(Struct, frozen=True, kw_only=True):
    """The content of `sweep.json`: what all points share; a sweep can be resumed only with the same."""

    input_sha256: str
    columns: dict[str, str]
    limit: int | None
    samples: int
    seed: int
    admission: str = ""
    """Empty in files of earlier versions, like `order`."""
    order: str = ""
    engines: dict[str, dict[str, Any]]
    settings: tuple[str, ...]
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

    @property
    def exit_code(self) -> int:
        """0 all points are there · 1 an engine or the folder was lost · 3 some chains failed · 130 interrupted."""
        if self.error is not None:
            return 130 if isinstance(self.error, Interrupted) else 1
        return 3 if any(point.failed for point in self.points) else 0


def sweep(
    options: SweepOptions, observer: Observer | None = None, done: Done | None = None, *, attend: Attend | None = None
) -> SweepResult:
    """Run every point that is not finished yet. Errors in the options are raised before an engine starts.

    `observer` observes each run, `done` is called after each point. `attend` runs beside the sweep and may stop it.
    """
    systems, observer = read_systems(options), observer or Observer()
    error: PipelineError | None = None
    with held_folder(options, systems) as folder:
        prepared = prepare(options, systems, folder)
        for sentence in dict.fromkeys(each for system in systems for each in notices(system.plan)):
            observer.tell(sentence)
        finished = FinishedPoints(prepared, start_or_resume(prepared), done or (lambda *about: None))
        try:
            run_missing(prepared, finished, observer, attend)
        except PipelineError as failure:
            if not finished.points:
                raise
            error = failure
    points = [finished.points[each.name] for each in prepared.planned_points if each.name in finished.points]
    return SweepResult(folder=prepared.folder, points=points, planned=len(prepared.planned_points), error=error)


def run_missing(prepared: "Prepared", finished: "FinishedPoints", observer: Observer, attend: Attend | None) -> None:
    """Run the points that are not finished yet; raises the error that ends a run early, `Interrupted` included."""
    missing = [each for each in prepared.planned_points if each.name not in finished.points]
    processes = min(prepared.processes, len(missing))
    if processes > 1:
        in_loop(partial(attended, attend, partial(run_side_by_side, prepared, missing, processes, finished.add)), virtual=False)
        return
    runner = SweepRunner(prepared, observer, finished.add)
    # Each point on simulated engines has engines and a clock of its own, so that it does not depend on the order.
    for part in [[each] for each in missing] if prepared.virtual_time else filter(None, [missing]):
        in_loop(partial(attended, attend, partial(runner.run, part)), virtual=prepared.virtual_time)


async def attended(attend: Attend | None, body: Callable[[], Awaitable[None]]) -> None:
    """Carry out `body` with `attend` beside it; raises its `PipelineError`, or `Interrupted` where `attend` aborted it."""
    stop = Stop()
    with unwrapped():
        async with anyio.create_task_group() as tasks:
            if attend is not None:
                await tasks.start(attend, stop)
            with stop.guard():
                await body()
            tasks.cancel_scope.cancel()
    if stop.aborted:
        raise Interrupted


class Prepared(Struct, frozen=True, kw_only=True):
    """A sweep whose options have been checked."""

    options: SweepOptions
    systems: list[System]
    engines: dict[str, EngineSpec]
    """By role, the same for all systems."""
    problems: Problems
    fingerprint: Fingerprint
    virtual_time: bool
    earlier_thoughts: Thoughts
    """Lengths of thoughts by which chains are put in order."""
    folder: Path
    planned_points: list[PlannedPoint]
    """All points, in the order in which they are run."""

    @property
    def processes(self) -> int:
        """Most points that run side by side."""
        return (self.options.processes or len(cores())) if self.virtual_time else 1

    def preflight(self, system: System, folder: Path, **changes: Any) -> Preflight:
        """The preflight of one run of `system` in `folder`, a new one that is the sweep's; `changes` are options of that run alone."""
        options = run_options(self.options, system, folder, **changes)
        problems, fingerprint = self.problems, self.fingerprint
        if options.limit != self.options.limit:
            problems = open_problems(options.input, options.columns, options.limit)
            fingerprint = problems.check()
        return Preflight(
            options=options,
            plan=system.plan,
            problems=problems,
            fingerprint=fingerprint,
            virtual_time=self.virtual_time,
            earlier_thoughts=self.earlier_thoughts,
            claim=Claim(folder=folder),
        )


@contextmanager
def held_folder(options: SweepOptions, systems: list[System]) -> Iterator[Path]:
    """Hold the folder of a sweep until the end, by default a new one; raises `UsageError` where it is in use or cannot be made."""
    if options.output is not None:
        with hold_output(options.output, SWEEP, resume=options.resume):
            yield options.output
        return
    if options.resume:
        raise UsageError("--resume: name the sweep's folder with --output")
    with hold_default(Path("sweeps"), systems[-1].plan.name) as folder:
        yield folder


def prepare(options: SweepOptions, systems: list[System], folder: Path) -> Prepared:
    """Check everything that can be checked before an engine starts; raises `GraphError`, `InputError` and `UsageError`."""
    engines = shared_engines(systems)
    virtual = virtual_time(engines, str(options.graphs[0]))
    if not virtual and (options.processes or 1) > 1:
        raise UsageError(f"--processes {options.processes}: only points on simulated engines run side by side; leave it out, or take 1")
    if known := [each for each in options.settings if not any(each in system.settings for system in systems)]:
        raise UsageError(f"--set {known[0]}: none of the graphs has such a param")
    problems = open_problems(options.input, options.columns, options.limit)
    fingerprint = problems.check()
    for system in systems:
        check_replay(system.plan, run_options(options, system, folder), fingerprint)
    return Prepared(
        options=options,
        systems=systems,
        engines=engines,
        problems=problems,
        fingerprint=fingerprint,
        virtual_time=virtual,
        earlier_thoughts=earlier_thoughts(options.order),
        folder=folder,
        planned_points=planned_points(systems, options, 1 if virtual else options.repeats),
    )


def run_options(options: SweepOptions, system: System, folder: Path, **changes: Any) -> RunOptions:
    """The options of one run of a sweep; `changes` are options of that run alone, such as its batch size."""
    own: dict[str, Any] = {
        "graph": system.graph,
        "input": options.input,
        "engines": options.engines,
        "settings": system.settings,
        "columns": options.columns,
        "samples": options.samples,
        "limit": options.limit,
        "seed": options.seed,
        "admission": options.admission,
        "order": options.order,
        "output": folder,
    }
    return RunOptions(**own | changes)


def start_or_resume(prepared: Prepared) -> dict[str, Point]:
    """Write `sweep.json`, after a check that it is still the same where it is there; returns the finished points by name."""
    options, path, points = prepared.options, prepared.folder / SWEEP, prepared.folder / POINTS
    shared = SweepFile(
        input_sha256=prepared.fingerprint.sha256,
        columns=options.columns,
        limit=options.limit,
        samples=options.samples,
        seed=options.seed,
        admission=options.admission,
        order=options.order,
        engines={role: settings_of(spec) for role, spec in prepared.engines.items()},
        settings=options.settings,
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


def read_systems(options: SweepOptions) -> list[System]:
    """All systems of a sweep: the target alone, then each graph with each choice of the params that vary.

    Raises `GraphError` for a faulty graph, and `UsageError` for a param that no graph has or systems with equal labels.
    """
    plain = [(graph, _plan(graph, options, ())) for graph in options.graphs]
    check_varied(options.vary, {plan.name: plan.params for _, plan in plain})
    beside = find_file(options.graphs[0], "graph").with_name("target.yaml")
    baseline = options.baseline or (beside if beside.is_file() else Path("target"))
    found = [_system(baseline, options, {}, baseline=True)]
    for graph, plan in plain:
        if plan.digest != found[0].plan.digest:
            found += [_system(graph, options, choice) for choice in combinations(options.vary, plan.params)]
    labels = [system.label for system in found]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise UsageError(f"two of the graphs are named {twice!r}; points are told apart by that name")
    return found


def _system(graph: Path, options: SweepOptions, choice: Mapping[str, str], *, baseline: bool = False) -> System:
    settings = tuple(f"{name}={value}" for name, value in choice.items())
    plan = _plan(graph, options, settings)
    own = _settings(plan, options) + settings
    return System(graph=graph, settings=own, plan=plan, varied={name: plan.params[name] for name in choice}, baseline=baseline)


def _plan(graph: Path, options: SweepOptions, choice: tuple[str, ...]) -> Plan:
    """The plan of a graph, with those of the user's settings that are params of it: graphs of a sweep may have different params."""
    bare = load_plan(graph, options.engines, tuple(each for each in options.settings if each.startswith("engines.")))
    return load_plan(graph, options.engines, _settings(bare, options) + choice)


def _settings(plan: Plan, options: SweepOptions) -> tuple[str, ...]:
    return tuple(each for each in options.settings if each.startswith("engines.") or each.partition("=")[0] in plan.params)


def shared_engines(systems: list[System]) -> dict[str, EngineSpec]:
    """The engines of all systems by role; raises `GraphError` where one role has different engines."""
    specs: dict[str, EngineSpec] = {}
    for system in systems:
        for role, spec in system.plan.engines.items():
            if specs.setdefault(role, spec) != spec:
                raise GraphError(str(system.graph), f"engine {role!r} is not the one of the graphs before; give one for all with --engines")
    return specs


class FinishedPoints:
    """The finished points of a sweep, by name, which are on disk as soon as they are here."""

    def __init__(self, prepared: Prepared, points: dict[str, Point], done: Done) -> None:
        self.points = points
        self._folder, self._done = prepared.folder, done
        self._places = {each.name: place for place, each in enumerate(prepared.planned_points)}

    def add(self, planned: PlannedPoint, point: Point) -> None:
        """Take in `point`, and write all points to `points.parquet`, in the order in which they were planned."""
        self.points[planned.name] = point
        self.points = dict(sorted(self.points.items(), key=lambda item: self._places.get(item[0], -1)))
        write_points(self._folder / POINTS, list(self.points.values()))
        self._done(sum(name in self._places for name in self.points), len(self._places), point)


class SweepRunner:
    """Runs points on engines that are open for all of them, and has each kept when it is finished."""

    def __init__(self, prepared: Prepared, observer: Observer, keep: Keep) -> None:
        self._prepared, self._observer, self._keep = prepared, observer, keep

    async def run(self, part: list[PlannedPoint]) -> None:
        """Run the points of `part` one after the other; raises the error that ends a run early."""
        async with open_engines(self._prepared.engines) as engines:
            await self._warm_up(engines)
            for planned in part:
                await self._point(engines, planned)

    async def _warm_up(self, engines: Mapping[str, Engine]) -> None:
        """Let every system solve a few problems at the largest batch size, so that kernels are compiled and buffers have their size."""
        prepared = self._prepared
        if prepared.virtual_time:
            return
        self._observer.tell(f"warming up with {WARM_UP_PROBLEMS} problems")
        limit, batch_size = min(WARM_UP_PROBLEMS, prepared.options.limit or WARM_UP_PROBLEMS), max(prepared.options.batch_sizes)
        with TemporaryDirectory(prefix="warm-up-", dir=prepared.folder) as folder:
            for system in prepared.systems:
                preflight = prepared.preflight(system, Path(folder) / system.plan.digest[:16], limit=limit, batch_size=batch_size)
                await self._solved(preflight, engines)

    async def _point(self, engines: Mapping[str, Engine], planned: PlannedPoint) -> None:
        """Run one point and, in the first repeat, measure the lower bound of its calls."""
        coordinates, prepared = planned.coordinates, self._prepared
        folder = prepared.folder / "runs" / planned.name
        if folder.is_symlink():
            folder.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        kept = await reset_caches(engines, planned.system.plan.engines)
        recorders = {role: recording(engines[role], MOST_REPLAYED) for role in planned.system.plan.engines}
        preflight = prepared.preflight(planned.system, folder, batch_size=coordinates.batch_size, schedule=coordinates.schedule)
        record = await self._solved(preflight, recorders)
        bound_s = {} if coordinates.repeat else await self._lower_bound(engines, recorders, record, coordinates.batch_size)
        cpu_s = record.orchestrator_cpu_s
        point = point_of_run(folder, coordinates, simulated=prepared.virtual_time, limit_s=bound_s, cpu_s=cpu_s, cache_kept=kept)
        self._keep(planned, point)

    async def _solved(self, preflight: Preflight, engines: Mapping[str, Engine]) -> RunFile:
        """Carry out a run and return its `run.json`; raises the error that ends it early."""
        assert preflight.folder is not None, "every point has a folder"
        with hold(preflight.folder):
            result = await solve_on(engines, take_up(preflight), self._observer)
        if result.error is not None:
            raise result.error
        return result.run

    async def _lower_bound(
        self, engines: Mapping[str, Engine], recorders: Mapping[str, RecordingEngine], record: RunFile, batch_size: int
    ) -> dict[str, float]:
        """Seconds that each engine takes for its calls alone, by role; empty where they were too many to hold."""
        calls = {role: found.requests for role, found in record.engine_statistics.items()}
        bound_s = {}
        for role, requests in all_requests(recorders, calls).items():
            await reset_caches(engines, [role])
            bound_s[role] = await replay_s(engines[role], requests, min(self._prepared.engines[role].max_in_flight, batch_size))
        return bound_s


async def reset_caches(engines: Mapping[str, Engine], roles: Collection[str]) -> bool:
    """Empty the prefix caches of the engines `roles`; returns whether one of them cannot be emptied."""
    resettable = [engine for role, engine in engines.items() if role in roles and isinstance(engine, PrefixCacheReset)]
    for engine in resettable:
        await engine.reset_prefix_cache()
    return len(resettable) < len(roles)


def _check_same(path: Path, new: SweepFile) -> None:
    """Raise `UsageError` where `new` differs from the `sweep.json` in `path`, so that the sweep cannot be resumed."""
    try:
        old = msgspec.json.decode(path.read_bytes(), type=SweepFile)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is no sweep.json of this version: {error}") from error
    for name in ("input_sha256", "columns", "limit", "samples", "seed", "engines", "settings"):
        if getattr(old, name) != getattr(new, name):
            raise UsageError(f"{path}: cannot go on with it: {name} is {getattr(new, name)}, was {getattr(old, name)}; start a new sweep")
    for name in ("admission", "order"):
        if getattr(old, name) not in ("", getattr(new, name)):
            raise UsageError(f"{path}: cannot go on with it: {name} is {getattr(new, name)}, was {getattr(old, name)}; start a new sweep")
    for label in old.graphs.keys() & new.graphs.keys():
        if old.graphs[label] != new.graphs[label]:
            raise UsageError(f"{path}: cannot go on with it: the graph of {label!r} is another one; start a new sweep")
