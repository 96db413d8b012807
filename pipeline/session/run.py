"""The composition root: load, compile, open, execute, close. Everything meets here and nowhere else."""

import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec
from msgspec import Struct, structs

from pipeline.data.problems import Fingerprint, Problems, open_problems
from pipeline.engine import Engine
from pipeline.engines.registry import cautions, open_engines, virtual_time
from pipeline.engines.replay.recording import bindings
from pipeline.errors import Interrupted, PipelineError, first_of
from pipeline.grading.grader import BESIDE_ENGINES, Grader, default_workers
from pipeline.graph.compiler import compile_graph
from pipeline.graph.loader import load_graph
from pipeline.graph.plan import Plan
from pipeline.graph.plugins import engine_specs, stage_specs
from pipeline.reasoning.prompts import INSTRUCTION, PromptBuilder
from pipeline.runtime.chain_recorder import Clock, Progress
from pipeline.runtime.executor import Executor, Settings
from pipeline.runtime.inline_grader import InlineGrader, open_inline_grader
from pipeline.runtime.lane import Lane
from pipeline.runtime.resume_state import ResumeState
from pipeline.runtime.schedule import SCHEDULES
from pipeline.runtime.virtual_clock import VirtualClock
from pipeline.session.options import RunOptions, kept, old_run
from pipeline.session.replay import announcements, check_replay, resolved
from pipeline.session.resume import check_drift, drop_unfinished, last_instant, read_resume_state
from pipeline.session.signals import DRAIN_S, restored_handlers, stop_on_signal
from pipeline.stages.base import Stage
from pipeline.stages.build import build_stages
from pipeline.text import storable
from pipeline.trace.folder import hold, new_folder
from pipeline.trace.recorder import WRITE_EVERY_S, open_recorder
from pipeline.trace.run_file import RunFile, Session, Status, host, resolved_engines, versions
from pipeline.trace.store import TraceStore, recover


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
    nothing_to_do: bool = False
    """The run was to be resumed and was finished already."""

    @property
    def exit_code(self) -> int:
        """0 all finished · 1 could not go on · 3 some chains failed · 130 interrupted."""
        if self.run.status == "interrupted":
            return 130
        if self.run.status == "failed":
            return 1
        return 3 if self.failed else 0


T = TypeVar("T")
Watch = Callable[[View], AbstractContextManager[Any]]
Tell = Callable[[str], object]


def load_plan(graph: Path, engines: Path | None = None, settings: tuple[str, ...] = ()) -> Plan:
    """The compiled plan of a graph file on an engines file or `replay:RUN`; raises `UsageError`."""
    spec = load_graph(graph, stage_specs(), engine_specs(), engines=bindings(engines), settings=settings)
    return resolved(compile_graph(spec, str(graph)))


def run(options: RunOptions, watch: Watch | None = None, tell: Tell | None = None) -> Result:
    """Solve the input, or what is left of it. What goes wrong before a chain could start is raised; every later end is a `Result`.

    `watch` shows how it goes, `tell` gets the few sentences that a person should read in between.
    """
    plan = load_plan(options.graph, options.engines, options.settings)
    if tell is not None:
        for caution in cautions(plan.engines):
            tell(caution)
    virtual = virtual_time(plan.engines, str(options.graph))
    old = old_run(options)
    problems = open_problems(options.input, options.columns, options.limit)
    fingerprint = problems.check()
    check_replay(plan, options, fingerprint)
    if tell is not None:
        for sentence in announcements(plan):
            tell(sentence)
    this = Run(options, plan, problems, fingerprint, virtual, watch or (lambda view: nullcontext()), tell or (lambda sentence: None))
    if old is None:
        return this.start()
    check_drift(this.folder, old, this.record, options.allow_drift)
    totals = old.totals
    again = options.retry_failed and totals.get("chains_failed")
    if old.status == "finished" and old.input["limit"] == options.limit and not again:
        return Result(folder=this.folder, run=old, done=totals["chains_done"], failed=totals["chains_failed"], nothing_to_do=True)
    return this.go_on(old)


def in_loop(main: Callable[[], Awaitable[T]], *, virtual: bool) -> T:
    """Run `main` on asyncio, or on trio's virtual clock where the engines are simulated; handlers of signals are restored."""
    with restored_handlers():
        if not virtual:
            return anyio.run(main, backend="asyncio")
        return anyio.run(main, backend="trio", backend_options={"clock": VirtualClock()})


class Run:
    """One session of a run, from an open input to a closed run folder."""

    def __init__(
        self,
        options: RunOptions,
        plan: Plan,
        problems: Problems,
        fingerprint: Fingerprint,
        virtual: bool,
        watch: Watch,
        tell: Tell,
    ) -> None:
        self.options, self.plan, self.problems, self.fingerprint = options, plan, problems, fingerprint
        self.virtual, self.watch, self.tell = virtual, watch, tell
        self.folder = options.output or new_folder(plan.name)
        self.executor: Executor | None = None
        self.inline_grader: InlineGrader | None = None
        self.record = self._record()
        self.resume_state = ResumeState()
        self.resumed = False
        self.rewritten_bytes = 0
        self.opening = 0.0

    def go_on(self, old: RunFile) -> Result:
        """Do what an earlier session left to do; `old` is its `run.json`."""
        with hold(self.folder):
            self.rewritten_bytes = recover(self.folder)
            self.record, self.resumed = structs.replace(self.record, sessions=_ended_sessions(old, last_instant(self.folder))), True
            self.resume_state = read_resume_state(
                self.folder, self.fingerprint.rows * self.options.samples, self.options.samples, self.options.retry_failed
            )
            return self.start()

    def start(self) -> Result:
        """All of it, in an event loop of its own."""
        return in_loop(self._run, virtual=self.virtual)

    async def _run(self) -> Result:
        """All of it, under a watch for signals. However it ends once chains could start, `run.json` says so."""
        error: BaseException | None = None
        with ExitStack() as held:
            try:
                async with anyio.create_task_group() as tasks:
                    await tasks.start(stop_on_signal, self._drain)
                    await self._open(held)
                    tasks.cancel_scope.cancel()
                if self.executor and not self.executor.exhausted:
                    error = Interrupted()
            except BaseExceptionGroup as group:
                error = first_of(group, PipelineError) or group
            return self._ended(error)

    async def on(self, engines: Mapping[str, Engine]) -> Result:
        """All of it on engines that are open already, and stay open; of their totals the run's own part counts."""
        error: BaseException | None = None
        self.opening = time.monotonic()
        with ExitStack() as held:
            try:
                await self._solve({role: engines[role] for role in self.plan.engines}, held)
            except PipelineError as failure:
                error = failure
            except BaseExceptionGroup as group:
                error = first_of(group, PipelineError) or group
            return self._ended(error)

    def _ended(self, error: BaseException | None) -> Result:
        """How it ended, in `run.json` too; what no chain had a part in is raised."""
        if self.record.started_unix_ns:
            self._write(ended=error)
        if error is not None and not (self.executor and isinstance(error, PipelineError)):
            raise error
        assert self.executor is not None
        progress = self.executor.progress
        return Result(folder=self.folder, run=self.record, done=progress.done, failed=progress.failed, error=error)

    def _drain(self) -> bool:
        """Start no more chains; is there anything to wait for?"""
        if self.executor is None:
            return False
        self.executor.drain()
        self.tell(f"interrupted: live chains get {DRAIN_S:g} s to end; interrupt again to stop now")
        return True

    async def _open(self, held: ExitStack) -> None:
        """Engines first: nothing is left behind when one of them cannot start."""
        self.opening = time.monotonic()
        async with open_engines(self.plan.engines) as engines:
            await self._solve(engines, held)

    async def _solve(self, engines: dict[str, Engine], held: ExitStack) -> None:
        """The session: what is decided about it goes to `run.json`, then the chains run."""
        instruction = INSTRUCTION if self.plan.instruction is None else self.plan.instruction
        builders = {role: PromptBuilder(engine.tokenizer, instruction) for role, engine in engines.items()}
        stages = build_stages(self.plan, builders, str(self.options.graph))
        if not self.resumed:
            held.enter_context(hold(self.folder))
        if self.resumed:
            self.rewritten_bytes += drop_unfinished(self.folder, self.options.retry_failed)
        before = self.record.sessions[-1].ended_unix_ns or 0 if self.record.sessions else 0
        session = Session(
            started_unix_ns=max(time.time_ns(), before + 1),  # simulated hours may lie ahead of the clock on the wall
            startup_s=time.monotonic() - self.opening,
            rewritten_bytes=self.rewritten_bytes,
            command=self.record.command,
            versions=versions(),
        )
        facts = {role: _facts(engine) for role, engine in engines.items()}
        self.record = structs.replace(self.record, sessions=(*self.record.sessions, session), engine_facts=facts).with_session(session)
        self.record.write(self.folder)
        await self._execute(engines, builders, stages)

    async def _execute(self, engines: dict[str, Engine], builders: dict[str, PromptBuilder], stages: dict[str, Stage]) -> None:
        """Until all chains are done, an engine or the folder is lost, or the user interrupts."""
        session, cpu = self.record.sessions[-1], time.process_time()
        started = session.started_unix_ns
        clock = Clock(started, _loop_clock(self.virtual))
        settings = Settings(run_id=self.record.run_id, seed=self.options.seed, samples=self.options.samples, virtual_time=self.virtual)
        schedule = SCHEDULES[self.options.schedule](self.options.batch_size)
        over: float | None = None
        before = {role: engine.statistics() for role, engine in engines.items()}
        try:
            async with self._open_inline_grader() as self.inline_grader:
                self.executor = Executor(
                    self.plan, stages, engines, builders, schedule, self.inline_grader, clock, settings, self.resume_state
                )
                try:
                    with self.watch(self._view(engines, clock)):
                        await self.executor.run(iter(self.problems))
                finally:
                    over = clock.now()  # engines are idle: what still is graded or written is no part of their time
        finally:
            ended = clock.unix_ns(clock.now() if over is None else over)
            self.record = self.record.with_session(
                structs.replace(
                    session,
                    ended_unix_ns=ended,
                    wall_time_s=(ended - started) / 1e9,
                    orchestrator_cpu_s=time.process_time() - cpu,
                    engine_statistics={role: structs.asdict(engine.statistics().since(before[role])) for role, engine in engines.items()},
                )
            )

    @asynccontextmanager
    async def _open_inline_grader(self) -> AsyncIterator[InlineGrader]:
        """Where rows go: through the graders into the run folder."""
        with Grader() if self.virtual else Grader(default_workers(), nice=BESIDE_ENGINES) as grader:
            store = TraceStore(self.folder, sync_every_s=WRITE_EVERY_S if self.virtual else 0.0)
            async with (
                open_recorder(store, virtual=self.virtual) as recorder,
                open_inline_grader(recorder, grader, self.virtual) as inline_grader,
            ):
                yield inline_grader

    def _write(self, ended: BaseException | None) -> None:
        status: Status = "finished" if ended is None else "interrupted" if isinstance(ended, Interrupted) else "failed"
        totals = _totals(self.executor.progress, self.inline_grader, self.resume_state) if self.executor and self.inline_grader else {}
        self.record = structs.replace(self.record, status=status, error=_said(ended) if status == "failed" else None, totals=totals)
        self.record = self.record.with_session(structs.replace(self.record.sessions[-1], status=status))
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
            options=kept(options),
        )


def _facts(engine: Engine) -> dict[str, str | int | float | bool]:
    return engine.facts | {"max_model_len": engine.max_model_len, "vocab_size": engine.vocab_size}


def _loop_clock(virtual: bool) -> Callable[[], float]:
    """The clock of the running event loop, asked directly: it is read several times a call."""
    if not virtual:
        return time.monotonic
    from trio.lowlevel import current_clock

    return current_clock().current_time


def _ended_sessions(old: RunFile, last_ns: int | None) -> tuple[Session, ...]:
    """The sessions of `old`; one that was killed ends with the last call of the trace."""
    *before, last = old.sessions
    if last.status == "running":
        ended = max(last.started_unix_ns, last_ns or 0)
        last = structs.replace(last, status="killed", ended_unix_ns=ended, wall_time_s=(ended - last.started_unix_ns) / 1e9)
    return (*before, last)


def _said(error: BaseException | None) -> str:
    """The sentence of an error, or of the first one in a group of foreign ones."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"


def _resolved_graph(plan: Plan) -> dict[str, Any]:
    graph: dict[str, Any] = msgspec.to_builtins(plan.block)
    return graph


def _totals(progress: Progress, inline_grader: InlineGrader, resume_state: ResumeState) -> dict[str, Any]:
    marks = inline_grader.statistics()
    return {
        "chains_done": progress.done,
        "chains_failed": progress.failed,
        "chains_cancelled": progress.cancelled,
        "graded": resume_state.graded + marks.graded,
        "correct": resume_state.correct + marks.correct,
        "errors": _by_type(progress.errors),
        "steps": progress.steps,
        "decisions": dict(progress.decisions),
        "output_tokens": progress.output_tokens,
    }


def _by_type(errors: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Failed chains: error, stage, number."""
    found: dict[str, dict[str, int]] = {}
    for (error, stage), count in sorted(errors.items()):
        found.setdefault(error, {})[stage] = count
    return found
