"""The composition root: load, compile, open, execute, close. Everything meets here and nowhere else."""

import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import msgspec
from msgspec import Struct, structs

from pipeline.compiler import compile_graph
from pipeline.engines.base import Engine
from pipeline.engines.registry import cautions, engine_specs, open_engines, virtual_time
from pipeline.errors import GraphError, Interrupted, PipelineError, RunFolderError, UsageError, first_of
from pipeline.grader import BESIDE_ENGINES, Grader, default_workers
from pipeline.loader import load_graph
from pipeline.plain import storable
from pipeline.plan import Plan
from pipeline.problems import Fingerprint, Problems, open_problems
from pipeline.prompts import INSTRUCTION, Dialect
from pipeline.runfile import RunFile, Status, host, resolved_engines, versions
from pipeline.runtime.executor import Executor, Settings
from pipeline.runtime.journal import Clock, Progress
from pipeline.runtime.lane import Lane
from pipeline.runtime.marking import Marking, open_marking
from pipeline.runtime.schedule import SCHEDULES, ScheduleName
from pipeline.spec import DraftSpec
from pipeline.stages.base import Stage
from pipeline.stages.registry import stage_kinds, stage_specs
from pipeline.trace.recorder import open_recorder
from pipeline.trace.store import TraceStore

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RunOptions(Struct, frozen=True, kw_only=True):
    """What a user decides about a run."""

    graph: Path
    input: Path
    engines: Path | None = None
    settings: tuple[str, ...] = ()
    """`NAME=VALUE` for params, `engines.ROLE.NAME=VALUE` for engines."""
    columns: dict[str, str] = {}
    batch_size: int = 64
    """Chains that live at once."""
    schedule: ScheduleName = "pipelined"
    samples: int = 1
    """Attempts at every problem."""
    limit: int | None = None
    seed: int = 0
    output: Path | None = None
    """The run folder; by default `runs/GRAPH-TIME`."""


class View(Struct, frozen=True, kw_only=True):
    """A running run, for a display: live objects that only the run changes."""

    plan: Plan
    folder: Path
    chains: int
    """How many there will be."""
    schedule: str
    batch_size: int
    virtual_time: bool
    progress: Progress
    lanes: dict[str, Lane]
    engines: dict[str, Engine]
    clock: Clock


class Result(Struct, frozen=True, kw_only=True):
    """How a run ended."""

    folder: Path
    run: RunFile
    done: int
    failed: int
    error: PipelineError | None = None

    @property
    def exit_code(self) -> int:
        """0 all finished · 1 could not go on · 3 some chains failed · 130 interrupted."""
        if self.run.status == "interrupted":
            return 130
        if self.run.status == "failed":
            return 1
        return 3 if self.failed else 0


Watch = Callable[[View], AbstractContextManager[Any]]
Warn = Callable[[str], None]


def load_plan(graph: Path, engines: Path | None = None, settings: tuple[str, ...] = ()) -> Plan:
    """The compiled plan of a graph file; raises `GraphError`."""
    spec = load_graph(graph, stage_specs(), engine_specs(), engines=engines, settings=settings)
    return compile_graph(spec, str(graph))


def run(options: RunOptions, watch: Watch | None = None, warn: Warn | None = None) -> Result:
    """Solve the input. What goes wrong before a chain could start is raised; every later end is a `Result`.

    `warn` is told what someone should know before engines start.
    """
    plan = load_plan(options.graph, options.engines, options.settings)
    if warn is not None:
        for caution in cautions(plan.engines):
            warn(caution)
    virtual = virtual_time(plan.engines, str(options.graph))
    if options.output is not None:
        _check_output(options.output)
    problems = open_problems(options.input, options.columns, options.limit)
    fingerprint = problems.check()
    return Run(options, plan, problems, fingerprint, virtual, watch or (lambda view: nullcontext())).start()


class Run:
    """One execution, from an open input to a closed run folder."""

    def __init__(self, options: RunOptions, plan: Plan, problems: Problems, fingerprint: Fingerprint, virtual: bool, watch: Watch) -> None:
        self.options, self.plan, self.problems, self.fingerprint = options, plan, problems, fingerprint
        self.virtual, self.watch = virtual, watch
        self.folder = options.output or _new_folder(plan.name)
        self.executor: Executor | None = None
        self.marking: Marking | None = None
        self.record = self._record()

    def start(self) -> Result:
        """Run on asyncio, or on trio's virtual clock where the engines are simulated."""
        handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
        try:
            if not self.virtual:
                return anyio.run(self._run, backend="asyncio")
            from trio.testing import MockClock

            return anyio.run(self._run, backend="trio", backend_options={"clock": MockClock(autojump_threshold=0)})
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    async def _run(self) -> Result:
        """All of it, under a watch for signals. However it ends once chains could start, `run.json` says so."""
        error: BaseException | None = None
        try:
            async with anyio.create_task_group() as tasks:
                await tasks.start(_stop_on_signal)
                await self._open()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            error = first_of(group, PipelineError) or group
        if self.record.started_unix_ns:
            self._write(ended=error)
        if error is not None and not (self.executor and isinstance(error, PipelineError)):
            raise error
        assert self.executor is not None
        progress = self.executor.progress
        return Result(folder=self.folder, run=self.record, done=progress.done, failed=progress.failed, error=error)

    async def _open(self) -> None:
        """Engines first: nothing is left behind when one of them cannot start."""
        opening = time.monotonic()
        async with open_engines(self.plan.engines) as engines:
            instruction = INSTRUCTION if self.plan.instruction is None else self.plan.instruction
            dialects = {role: Dialect(engine.tokenizer, instruction) for role, engine in engines.items()}
            stages = build_stages(self.plan, dialects, str(self.options.graph))
            self._create_folder()
            facts = {role: engine.facts for role, engine in engines.items()}
            startup_s = time.monotonic() - opening
            self.record = structs.replace(self.record, startup_s=startup_s, started_unix_ns=time.time_ns(), engine_facts=facts)
            self.record.write(self.folder)
            await self._execute(engines, dialects, stages)

    async def _execute(self, engines: dict[str, Engine], dialects: dict[str, Dialect], stages: dict[str, Stage]) -> None:
        """Until all chains are done, an engine or the folder is lost, or the user interrupts."""
        started, cpu = self.record.started_unix_ns, time.process_time()
        # asyncio's own clock, asked directly: it is read several times a call.
        clock = Clock(started) if self.virtual else Clock(started, time.monotonic)
        settings = Settings(run_id=self.record.run_id, seed=self.options.seed, samples=self.options.samples, virtual_time=self.virtual)
        schedule = SCHEDULES[self.options.schedule](self.options.batch_size)
        over: float | None = None
        try:
            async with self._open_marking() as self.marking:
                self.executor = Executor(self.plan, stages, engines, dialects, schedule, self.marking, clock, settings)
                try:
                    with self.watch(self._view(engines, clock)):
                        await self.executor.run(iter(self.problems))
                finally:
                    over = clock.now()  # engines are idle: what still is graded or written is no part of their time
        finally:
            ended = clock.unix_ns(clock.now() if over is None else over)
            self.record = structs.replace(
                self.record,
                ended_unix_ns=ended,
                wall_time_s=(ended - started) / 1e9,
                orchestrator_cpu_s=time.process_time() - cpu,
                engine_statistics={role: structs.asdict(engine.statistics()) for role, engine in engines.items()},
            )

    @asynccontextmanager
    async def _open_marking(self) -> AsyncIterator[Marking]:
        """Where rows go: through the graders into the run folder."""
        with Grader() if self.virtual else Grader(default_workers(), nice=BESIDE_ENGINES) as grader:
            async with (
                open_recorder(TraceStore(self.folder), virtual=self.virtual) as recorder,
                open_marking(recorder, grader, self.virtual) as marking,
            ):
                yield marking

    def _write(self, ended: BaseException | None) -> None:
        status: Status = "finished" if ended is None else "interrupted" if isinstance(ended, Interrupted) else "failed"
        totals = _totals(self.executor.progress, self.marking) if self.executor and self.marking else {}
        self.record = structs.replace(self.record, status=status, error=_said(ended) if status == "failed" else None, totals=totals)
        self.record.write(self.folder)

    def _view(self, engines: dict[str, Engine], clock: Clock) -> View:
        assert self.executor is not None
        return View(
            plan=self.plan,
            folder=self.folder,
            chains=self.fingerprint.rows * self.options.samples,
            schedule=self.options.schedule,
            batch_size=self.options.batch_size,
            virtual_time=self.virtual,
            progress=self.executor.progress,
            lanes=self.executor.lanes,
            engines=engines,
            clock=clock,
        )

    def _record(self) -> RunFile:
        options = self.options
        return RunFile(
            run_id=self.folder.name,
            status="running",
            graph_file=storable(str(options.graph)),
            graph=_resolved_graph(self.plan),
            graph_digest=self.plan.digest,
            params=self.plan.params,
            engines=resolved_engines(self.plan.engines),
            schedule=options.schedule,
            batch_size=options.batch_size,
            samples=options.samples,
            seed=options.seed,
            input={"file": storable(str(options.input)), "columns": options.columns, "limit": options.limit}
            | structs.asdict(self.fingerprint),
            virtual_time=self.virtual,
            versions=versions(),
            host=host(),
            command=[storable(argument) for argument in sys.argv],
            started_unix_ns=0,
        )

    def _create_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"{self.folder}: cannot be created: {(error.strerror or str(error)).lower()}") from error


def _check_output(folder: Path) -> None:
    """Refuse an output that cannot become a run folder, before anything is started."""
    try:
        str(folder).encode()
        if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
            raise UsageError(f"{folder}: is there already; name another folder with --output")
        parent = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise UsageError(f"{folder}: cannot be created in {parent}; name another folder with --output")
    except (UnicodeEncodeError, OSError) as error:
        raise UsageError(f"{str(folder)!r}: is no name for a folder; name another one with --output") from error


def _said(error: BaseException | None) -> str:
    """The sentence of an error, or of the first one in a group of foreign ones."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"


def _new_folder(graph: str) -> Path:
    """A folder under `runs` that is not there yet."""
    name = f"{graph}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (Path("runs") / (name if i == 1 else f"{name}-{i}") for i in count(1))
    return next(folder for folder in names if not folder.exists())


async def _stop_on_signal(*, task_status: anyio.abc.TaskStatus[None]) -> None:
    """The first signal cancels the run: what is finished stays, what is not is recorded as cancelled. Later ones wait."""
    with anyio.open_signal_receiver(*STOP_SIGNALS) as signals:
        task_status.started()
        async for _ in signals:
            break
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a second one would lose the rows that are being written
    raise Interrupted


def build_stages(plan: Plan, dialects: Mapping[str, Dialect], where: str) -> dict[str, Stage]:
    """The stages of `plan`, ready to run; raises `GraphError` where a tokenizer cannot name the options of a verdict."""
    most = sum(stage.spec.candidates for stage in plan.stages() if isinstance(stage.spec, DraftSpec))
    built: dict[str, Stage] = {}
    for stage in plan.stages():
        tag = str(type(stage.spec).__struct_config__.tag)
        built[stage.name] = stage_kinds()[tag].build(stage.name, stage.spec, dialects)
        dialect = dialects[built[stage.name].role]
        if tag == "choose" and most > dialect.most_candidates:
            what = f"its engine's tokenizer names only {dialect.most_candidates} options with one token and {most} candidates are drafted"
            raise GraphError(f"{where}: stage {stage.name}", what)
        if tag == "score" and not dialect.can_score:
            raise GraphError(f"{where}: stage {stage.name}", "its engine's tokenizer has no single tokens for the digits 0 to 9")
    return built


def _resolved_graph(plan: Plan) -> dict[str, Any]:
    graph: dict[str, Any] = msgspec.to_builtins(plan.block)
    return graph


def _totals(progress: Progress, marking: Marking) -> dict[str, Any]:
    marks = marking.statistics()
    return {
        "chains_done": progress.done,
        "chains_failed": progress.failed,
        "chains_cancelled": progress.cancelled,
        "graded": marks.graded,
        "correct": marks.correct,
        "steps": progress.steps,
        "decisions": dict(progress.decisions),
        "output_tokens": progress.output_tokens,
    }
