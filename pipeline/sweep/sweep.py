"""A sweep: many runs over the same problems, engines and seeds, one a point. Engines are opened once and forget between the
points; a point that is finished is never run again. Points, one row each, go to `points.parquet` as they come.

The warm-up, loading, and what an engine remembers of another point are in no figure.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import msgspec
from msgspec import Struct, structs

from pipeline.analysis.points import Point, measured, read_points, write_points
from pipeline.bundled import find_file
from pipeline.data.problems import Fingerprint, Problems, open_problems
from pipeline.engine import Engine, PrefixCacheReset
from pipeline.engines.registry import cautions, open_engines, virtual_time
from pipeline.errors import GraphError, Interrupted, PipelineError, UsageError, first_of
from pipeline.graph.plan import Plan
from pipeline.graph.spec import EngineSpec
from pipeline.session.options import RunOptions
from pipeline.session.replay import announcements, check_replay
from pipeline.session.run import Run, Tell, View, in_loop, load_plan
from pipeline.session.signals import stop_on_signal
from pipeline.sweep.lower_bound import RecordingEngine, all_requests, replay_s
from pipeline.sweep.plan import Job, SweepOptions, System, check_varied, combinations, jobs
from pipeline.trace.folder import check_output, hold
from pipeline.trace.run_file import RunFile, host, resolved_engines, versions

WARM_UP_PROBLEMS = 32
MOST_REPLAYED = 50_000
"""Calls of one engine that are held for the replay that finds the limit; a run with more has none."""
POINTS = "points.parquet"

Watch = Callable[[View], AbstractContextManager[Any]]
Done = Callable[[int, int, Point], object]


class Onlookers(Struct, frozen=True, kw_only=True):
    """Who looks on: at a run while it goes on, for a sentence in between, at a point that is done."""

    watch: Watch
    tell: Tell
    done: Done


class SweepFile(Struct, frozen=True, kw_only=True):
    """The content of `sweep.json`: what all points share, so that a sweep that goes on is the same one."""

    input_sha256: str
    columns: dict[str, str]
    limit: int | None
    samples: int
    seed: int
    engines: dict[str, dict[str, Any]]
    settings: tuple[str, ...]
    graphs: dict[str, str]
    """Digest by the system's label."""
    simulated: bool
    host: dict[str, Any]
    versions: dict[str, str]


class SweepResult(Struct, frozen=True, kw_only=True):
    """How a sweep ended."""

    folder: Path
    points: list[Point]
    planned: int
    error: PipelineError | None = None

    @property
    def exit_code(self) -> int:
        """0 all points are there · 1 an engine or the folder was lost · 3 some chains failed · 130 interrupted."""
        if self.error is not None:
            return 130 if isinstance(self.error, Interrupted) else 1
        return 3 if any(point.failed for point in self.points) else 0


def sweep(options: SweepOptions, watch: Watch | None = None, tell: Tell | None = None, done: Done | None = None) -> SweepResult:
    """Run every point that is not there yet. What is wrong with the options is raised before an engine starts.

    `watch` shows each run, `tell` gets sentences for a person, `done` each point: which it is, of how many, and its figures.
    """
    say = tell or (lambda sentence: None)
    systems = read_systems(options)
    specs = shared_engines(systems)
    for caution in cautions(specs):
        say(caution)
    virtual = virtual_time(specs, str(options.graphs[0]))
    for sentence in dict.fromkeys(sentence for system in systems for sentence in announcements(system.plan)):
        say(sentence)
    problems = open_problems(options.input, options.columns, options.limit)
    onlookers = Onlookers(watch=watch or (lambda view: nullcontext()), tell=say, done=done or (lambda *about: None))
    return Sweep(options, systems, specs, virtual, problems, onlookers).run()


def read_systems(options: SweepOptions) -> list[System]:
    """The target alone, by default `target.yaml` beside the first graph or else the bundled one, and each graph with each choice
    of the params that vary. Raises `GraphError` and `UsageError`."""
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
    """The graph with those of the user's settings that it knows: a sweep's graphs need not have the same params."""
    bare = load_plan(graph, options.engines, tuple(each for each in options.settings if each.startswith("engines.")))
    return load_plan(graph, options.engines, _settings(bare, options) + choice)


def _settings(plan: Plan, options: SweepOptions) -> tuple[str, ...]:
    return tuple(each for each in options.settings if each.startswith("engines.") or each.partition("=")[0] in plan.params)


def shared_engines(systems: list[System]) -> dict[str, EngineSpec]:
    """The engines of all systems by role; raises `GraphError` where two of them mean different ones."""
    specs: dict[str, EngineSpec] = {}
    for system in systems:
        for role, spec in system.plan.engines.items():
            if specs.setdefault(role, spec) != spec:
                raise GraphError(str(system.graph), f"engine {role!r} is not the one of the graphs before; give one for all with --engines")
    return specs


class Sweep:
    """One session of a sweep."""

    def __init__(
        self,
        options: SweepOptions,
        systems: list[System],
        specs: dict[str, EngineSpec],
        virtual: bool,
        problems: Problems,
        onlookers: Onlookers,
    ) -> None:
        self.options, self.specs, self.virtual, self.problems = options, specs, virtual, problems
        self.onlookers = onlookers
        self.folder = options.output or Path("sweeps") / f"{systems[-1].plan.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        self.systems = systems
        self.jobs = jobs(systems, options, 1 if virtual else options.repeats)
        self.points: dict[str, Point] = {}
        self.fingerprint: Fingerprint

    def run(self) -> SweepResult:
        """All points that are missing, in order; raises what no point had a part in."""
        self._check()
        self.fingerprint = self.problems.check()
        for system in self.systems:
            check_replay(system.plan, self._options(system, 1, self.folder), self.fingerprint)
        error: PipelineError | None = None
        with hold(self.folder):
            self._begin()
            missing = [job for job in self.jobs if job.name not in self.points]
            try:
                # Of simulated engines each point has its own, on a clock of its own: so it is the same in whatever order.
                for session in [[job] for job in missing] if self.virtual else filter(None, [missing]):
                    in_loop(partial(self._session, session), virtual=self.virtual)
            except PipelineError as failure:
                if not self.points:
                    raise
                error = failure
        points = [self.points[job.name] for job in self.jobs if job.name in self.points]
        return SweepResult(folder=self.folder, points=points, planned=len(self.jobs), error=error)

    def _check(self) -> None:
        if self.options.resume and self.options.output is None:
            raise UsageError("--resume: name the sweep's folder with --output")
        if not (self.options.resume and (self.folder / "sweep.json").is_file()):
            check_output(self.folder)
        if known := [each for each in self.options.settings if not any(each in system.settings for system in self.systems)]:
            raise UsageError(f"--set {known[0]}: none of the graphs has such a param")

    def _begin(self) -> None:
        """Write what all points share, or see that it is still the same, and find the points that are there."""
        card = msgspec.json.decode(msgspec.json.encode(self._card()), type=SweepFile)
        path = self.folder / "sweep.json"
        if path.is_file():
            _check_same(path, card)
            file = self.folder / POINTS
            there = read_points(file) if file.is_file() else []
            self.points = {Job(system=self.systems[0], place=point).name: point for point in there}
        path.write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")

    def _card(self) -> SweepFile:
        options = self.options
        return SweepFile(
            input_sha256=self.fingerprint.sha256,
            columns=options.columns,
            limit=options.limit,
            samples=options.samples,
            seed=options.seed,
            engines=resolved_engines(self.specs),
            settings=options.settings,
            graphs={system.label: system.plan.digest for system in self.systems},
            simulated=self.virtual,
            host=host(),
            versions=versions(),
        )

    async def _session(self, session: list[Job]) -> None:
        failure: PipelineError | None = None
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(stop_on_signal, lambda: False)
                async with open_engines(self.specs) as engines:
                    await self._warm_up(engines)
                    for job in session:
                        await self._point(engines, job)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            failure = first_of(group, PipelineError)
            if failure is None:
                raise
        if failure is not None:
            raise failure

    async def _warm_up(self, engines: Mapping[str, Engine]) -> None:
        """Every system solves a few problems at the largest batch size: kernels are compiled and buffers have grown then."""
        if self.virtual:
            return
        self.onlookers.tell(f"warming up with {WARM_UP_PROBLEMS} problems")
        with TemporaryDirectory(prefix="warm-up-", dir=self.folder) as folder:
            for system in self.systems:
                options = self._options(system, max(self.options.batch_sizes), Path(folder) / system.plan.digest[:16])
                options = structs.replace(
                    options, limit=min(WARM_UP_PROBLEMS, self.options.limit or WARM_UP_PROBLEMS), schedule="pipelined"
                )
                problems = open_problems(options.input, options.columns, options.limit)
                await self._solved(self._new_run(system, options, problems), engines)

    async def _point(self, engines: Mapping[str, Engine], job: Job) -> None:
        """Run one point, then, the first time, the limit of its calls; keep its row."""
        place, folder = job.place, self.folder / "runs" / job.name
        shutil.rmtree(folder, ignore_errors=True)
        options = structs.replace(self._options(job.system, place.batch_size, folder), schedule=place.schedule)
        kept = await self._forget(engines, job.system.plan.engines)
        recording = {role: RecordingEngine(engines[role], MOST_REPLAYED) for role in job.system.plan.engines}
        result = await self._solved(self._new_run(job.system, options, self.problems), recording)
        limit_s = {} if place.repeat else await self._limit(engines, recording, result.record, place.batch_size)
        point = measured(folder, place, simulated=self.virtual, limit_s=limit_s, cpu_s=result.record.orchestrator_cpu_s, cache_kept=kept)
        self.points[job.name] = point
        write_points(self.folder / POINTS, list(self.points.values()))
        self.onlookers.done(sum(each.name in self.points for each in self.jobs), len(self.jobs), point)

    async def _solved(self, run: Run, engines: Mapping[str, Engine]) -> Run:
        """`run`, done; raises what kept it from its end."""
        result = await run.on(engines)
        if result.error is not None:
            raise result.error
        return run

    async def _forget(self, engines: Mapping[str, Engine], roles: Mapping[str, Any]) -> bool:
        """Empty the caches; is there one that stays?"""
        resettable = [engine for role, engine in engines.items() if role in roles and isinstance(engine, PrefixCacheReset)]
        for engine in resettable:
            await engine.reset_prefix_cache()
        return len(resettable) < len(roles)

    async def _limit(
        self, engines: Mapping[str, Engine], recording: Mapping[str, RecordingEngine], record: RunFile, batch_size: int
    ) -> dict[str, float]:
        """Seconds that each engine takes for its calls alone; nothing where they were too many to hold."""
        calls = {role: found["requests"] for role, found in record.engine_statistics.items()}
        limit_s = {}
        for role, requests in all_requests(recording, calls).items():
            await self._forget(engines, {role: None})
            limit_s[role] = await replay_s(engines[role], requests, min(self.specs[role].max_in_flight, batch_size))
        return limit_s

    def _options(self, system: System, batch_size: int, folder: Path) -> RunOptions:
        options = self.options
        return RunOptions(
            graph=system.graph,
            input=options.input,
            engines=options.engines,
            settings=system.settings,
            columns=options.columns,
            batch_size=batch_size,
            samples=options.samples,
            limit=options.limit,
            seed=options.seed,
            output=folder,
        )

    def _new_run(self, system: System, options: RunOptions, problems: Problems) -> Run:
        return Run(options, system.plan, problems, self.fingerprint, self.virtual, self.onlookers.watch, self.onlookers.tell)


def _check_same(path: Path, card: SweepFile) -> None:
    """Raise `UsageError` where a sweep that is to go on would not be the same."""
    try:
        old = msgspec.json.decode(path.read_bytes(), type=SweepFile)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: is no sweep.json of this version: {error}") from error
    for name in ("input_sha256", "columns", "limit", "samples", "seed", "engines", "settings"):
        if getattr(old, name) != getattr(card, name):
            raise UsageError(f"{path}: cannot go on with it: {name} is {getattr(card, name)}, was {getattr(old, name)}; start a new sweep")
    for label in old.graphs.keys() & card.graphs.keys():
        if old.graphs[label] != card.graphs[label]:
            raise UsageError(f"{path}: cannot go on with it: the graph of {label!r} is another one; start a new sweep")
