"""One session of a run, in four phases: preflight, open, execute, finish. Each takes what the one before it made, frozen.

    options --preflight--> Preflight --taken_up--> Ready --opened--> Opened --execute--> SessionResult

Nothing is printed, no signal is handled and no argument of the process is read: the command line and the Python API do what
each of them needs around it.
"""

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from msgspec import Struct, structs

from pipeline.data.problems import open_problems
from pipeline.engine import Engine, EngineStatistics, Fact
from pipeline.engines.registry import open_engines
from pipeline.errors import Interrupted, PipelineError
from pipeline.grading.grader import BESIDE_ENGINES, Grader, default_workers
from pipeline.graph.plan import Plan
from pipeline.reasoning.prompts import INSTRUCTION, PromptBuilder
from pipeline.runtime.chain_recorder import Clock, Progress
from pipeline.runtime.executor import Executor, Settings
from pipeline.runtime.inline_grader import GradingStatistics, InlineGrader, open_inline_grader
from pipeline.runtime.lane import Lane
from pipeline.runtime.resume_state import ResumeState
from pipeline.runtime.rows import RowSink, Tee
from pipeline.runtime.schedule import SCHEDULES
from pipeline.session.loop import in_loop, loop_clock
from pipeline.session.options import RunOptions
from pipeline.session.preflight import Preflight, load_plan, new_record, notices, preflight
from pipeline.session.resume import drop_unfinished, read_resume_state
from pipeline.session.stop import Stop
from pipeline.stages.base import Stage
from pipeline.stages.build import build_stages
from pipeline.tasks import unwrapped
from pipeline.trace.folder import hold, removed_if_unused
from pipeline.trace.recorder import WRITE_EVERY_S, open_recorder
from pipeline.trace.run_file import RunFile, Session, Status, Totals, versions
from pipeline.trace.store import TraceStore, recover


class View(Struct, frozen=True, kw_only=True):
    """A running run, for a display: live objects that only the run changes."""

    plan: Plan
    folder: Path | None
    chains: int
    """How many there will be."""
    schedule: str
    batch_size: int
    virtual_time: bool
    progress: Progress
    lanes: dict[str, Lane]
    engines: Mapping[str, Engine]
    clock: Clock


Watch = Callable[[View], AbstractContextManager[Any]]
Tell = Callable[[str], object]
Attend = Callable[..., Coroutine[Any, Any, Any]]
"""`attend(stop, task_status=...)`: a task that lives beside a run and may stop it; cancelled when the run is over."""


class Observer(Struct, frozen=True, kw_only=True):
    """Who looks on while a run goes on."""

    watch: Watch = lambda view: nullcontext()
    """Shows how it goes, for as long as the context lasts."""
    tell: Tell = lambda sentence: None
    """Gets the few sentences that a person should read in between."""
    sink: RowSink | None = None
    """Gets every row too."""


class SessionResult(Struct, frozen=True, kw_only=True):
    """How a run ended."""

    folder: Path | None
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


class Ready(Struct, frozen=True, kw_only=True):
    """A run whose folder is held by this process, and what earlier sessions left in it."""

    flight: Preflight
    record: RunFile
    """With the sessions so far."""
    resume_state: ResumeState
    rewritten_bytes: int = 0


class Opened(Struct, frozen=True, kw_only=True):
    """A run on open engines, whose chains may start."""

    ready: Ready
    record: RunFile
    """With this session, as it is on the disk."""
    engines: Mapping[str, Engine]
    builders: Mapping[str, PromptBuilder]
    stages: Mapping[str, Stage]

    @property
    def session(self) -> Session:
        """This one."""
        return self.record.sessions[-1]


def run(
    options: RunOptions, observer: Observer | None = None, *, attend: Attend | None = None, command: Sequence[str] = ()
) -> SessionResult:
    """Solve the input, or what is left of it. What goes wrong before a chain could start is raised; every later end is a `SessionResult`.

    `attend` lives beside the run and may stop it; `command` is kept in `run.json`. Not inside a running event loop.
    """
    plan, observer = load_plan(options.graph, options.engines, options.settings), observer or Observer()
    for sentence in notices(plan):
        observer.tell(sentence)
    flight = preflight(options, plan, open_problems(options.input, options.columns, options.limit))
    if flight.old is not None and flight.nothing_to_do:
        totals = flight.old.totals
        return SessionResult(folder=flight.folder, run=flight.old, done=totals.chains_done, failed=totals.chains_failed, nothing_to_do=True)
    with taken_up(flight, command) as ready:
        return in_loop(partial(solve, ready, observer, attend=attend), virtual=flight.virtual_time)


@contextmanager
def taken_up(flight: Preflight, command: Sequence[str] = ()) -> Iterator[Ready]:
    """Keep others out of the run folder, and find what earlier sessions left to do."""
    record = new_record(flight, command)
    if flight.folder is None:
        yield Ready(flight=flight, record=record, resume_state=ResumeState())
        return
    with removed_if_unused(flight.folder), hold(flight.folder):
        if flight.old is None:
            yield Ready(flight=flight, record=record, resume_state=ResumeState())
            return
        rewritten = recover(flight.folder)
        options = flight.options
        state = read_resume_state(flight.folder, flight.chains, options.samples, options.retry_failed)
        record = structs.replace(record, sessions=_ended_sessions(flight.old, state.last_call_unix_ns))
        yield Ready(flight=flight, record=record, resume_state=state, rewritten_bytes=rewritten)


async def solve(ready: Ready, observer: Observer, stop: Stop | None = None, *, attend: Attend | None = None) -> SessionResult:
    """Open the engines of the plan and solve; raises what keeps any chain from starting, `Interrupted` too."""
    stop, result = stop or Stop(), None
    with unwrapped():
        async with anyio.create_task_group() as tasks:
            if attend is not None:
                await tasks.start(attend, stop)
            opening = time.monotonic()
            with stop.guard():
                async with open_engines(ready.flight.plan.engines) as engines:
                    result = await solve_on(engines, ready, observer, stop, opening)
            tasks.cancel_scope.cancel()
    if result is None:
        raise Interrupted
    return result


async def solve_on(
    engines: Mapping[str, Engine], ready: Ready, observer: Observer, stop: Stop | None = None, opening: float | None = None
) -> SessionResult:
    """Solve on `engines` that are open already, and stay open; of their totals the run's own part counts.

    `opening`: when their opening began, by `time.monotonic`.
    """
    now = time.monotonic()
    engines = {role: engines[role] for role in ready.flight.plan.engines}
    return await execute(opened(ready, engines, now - (now if opening is None else opening)), observer, stop or Stop())


def opened(ready: Ready, engines: Mapping[str, Engine], startup_s: float) -> Opened:
    """Everything that a chain needs, and `run.json` on the disk. Raises `GraphError` where a tokenizer does not serve the graph."""
    flight, record = ready.flight, ready.record
    instruction = INSTRUCTION if flight.plan.instruction is None else flight.plan.instruction
    builders = {role: PromptBuilder(engine.tokenizer, instruction) for role, engine in engines.items()}
    stages = build_stages(flight.plan, builders, str(flight.options.graph))
    rewritten = ready.rewritten_bytes
    if flight.folder is not None and flight.old is not None:
        rewritten += drop_unfinished(flight.folder, flight.options.retry_failed)
    before = record.sessions[-1].ended_unix_ns or 0 if record.sessions else 0
    session = Session(
        started_unix_ns=max(time.time_ns(), before + 1),  # simulated hours may lie ahead of the clock on the wall
        startup_s=startup_s,
        rewritten_bytes=rewritten,
        command=record.command,
        versions=versions(),
    )
    facts = {role: _facts(engine) for role, engine in engines.items()}
    record = structs.replace(record, sessions=(*record.sessions, session), engine_facts=facts).with_session(session)
    if flight.folder is not None:
        record.write(flight.folder)
    return Opened(ready=ready, record=record, engines=engines, builders=builders, stages=stages)


def _facts(engine: Engine) -> dict[str, Fact]:
    return {**engine.facts, "max_model_len": engine.max_model_len, "vocab_size": engine.vocab_size}


async def execute(run: Opened, observer: Observer, stop: Stop) -> SessionResult:
    """Until all chains are done, an engine or the folder is lost, or the run is stopped. However it ends, `run.json` says so."""
    flight, cpu = run.ready.flight, time.process_time()
    clock = Clock(run.session.started_unix_ns, loop_clock(flight.virtual_time))
    before = {role: engine.statistics() for role, engine in run.engines.items()}
    chains: Chains | None = None
    error: BaseException | None = Interrupted()
    try:
        with stop.guard():
            async with _open_rows(flight, observer.sink) as rows:
                chains = Chains(run, rows, clock)
                stop.drained_by(chains.executor.drain)
                await chains.run(observer)
            if chains.executor.exhausted:
                error = None
    except PipelineError as failure:
        error = failure
        if chains is None:
            raise
    except BaseException as failure:
        error = failure
        raise
    finally:
        ended = clock.now() if chains is None or chains.ended is None else chains.ended
        spent = {role: engine.statistics().since(before[role]) for role, engine in run.engines.items()}
        record = ended_record(run, clock.unix_ns(ended), time.process_time() - cpu, spent, error, chains)
        if flight.folder is not None:
            record.write(flight.folder)
    if chains is None:
        raise Interrupted
    progress = chains.executor.progress
    assert error is None or isinstance(error, PipelineError)
    return SessionResult(folder=flight.folder, run=record, done=progress.done, failed=progress.failed, error=error)


class Chains:
    """The executor of a session, and when its engines became idle."""

    def __init__(self, run: Opened, rows: InlineGrader, clock: Clock) -> None:
        flight = run.ready.flight
        options = flight.options
        settings = Settings(run_id=flight.run_id, seed=options.seed, samples=options.samples, virtual_time=flight.virtual_time)
        schedule = SCHEDULES[options.schedule](options.batch_size)
        self.executor = Executor(
            flight.plan, run.stages, run.engines, run.builders, schedule, rows, clock, settings, run.ready.resume_state
        )
        self.ended: float | None = None
        """By the run's clock: what still is graded or written then is no part of the engines' time."""
        self._run, self._rows, self._clock = run, rows, clock

    @property
    def graded(self) -> GradingStatistics:
        """Verdicts of this session."""
        return self._rows.statistics()

    async def run(self, observer: Observer) -> None:
        """Solve; raises `RunError` when an engine or the run folder is lost."""
        flight, executor = self._run.ready.flight, self.executor
        view = View(
            plan=flight.plan,
            folder=flight.folder,
            chains=flight.chains,
            schedule=flight.options.schedule,
            batch_size=flight.options.batch_size,
            virtual_time=flight.virtual_time,
            progress=executor.progress,
            lanes=executor.lanes,
            engines=self._run.engines,
            clock=self._clock,
        )
        try:
            with observer.watch(view):
                await executor.run(iter(flight.problems))
        finally:
            self.ended = self._clock.now()


def ended_record(
    run: Opened,
    ended_unix_ns: int,
    cpu_s: float,
    statistics: Mapping[str, EngineStatistics],
    error: BaseException | None,
    chains: Chains | None,
) -> RunFile:
    """`run.json` at the end of the session. What cancels a run from outside interrupts it."""
    stopped = isinstance(error, Interrupted) or (error is not None and not isinstance(error, Exception))
    status: Status = "finished" if error is None else "interrupted" if stopped else "failed"
    session = structs.replace(
        run.session,
        status=status,
        ended_unix_ns=ended_unix_ns,
        wall_time_s=(ended_unix_ns - run.session.started_unix_ns) / 1e9,
        orchestrator_cpu_s=cpu_s,
        engine_statistics=dict(statistics),
    )
    totals = _totals(chains.executor.progress, chains.graded, run.ready.resume_state) if chains is not None else Totals()
    record = structs.replace(run.record, status=status, error=_sentence(error) if status == "failed" else None, totals=totals)
    return record.with_session(session)


@asynccontextmanager
async def _open_rows(flight: Preflight, sink: RowSink | None) -> AsyncIterator[InlineGrader]:
    """Where rows go: through the graders into the run folder, where there is one, and to the caller's `sink`."""
    virtual = flight.virtual_time
    sinks: list[RowSink] = [] if sink is None else [sink]
    with Grader() if virtual else Grader(default_workers(), nice=BESIDE_ENGINES) as grader:
        async with AsyncExitStack() as stack:
            if flight.folder is not None:
                store = TraceStore(flight.folder, sync_every_s=WRITE_EVERY_S if virtual else 0.0)
                sinks.insert(0, await stack.enter_async_context(open_recorder(store, virtual=virtual)))
            target = sinks[0] if len(sinks) == 1 else Tee(*sinks)
            yield await stack.enter_async_context(open_inline_grader(target, grader, virtual))


def _ended_sessions(old: RunFile, last_ns: int | None) -> tuple[Session, ...]:
    """The sessions of `old`; one that was killed ends with the last call of the trace."""
    *before, last = old.sessions
    if last.status == "running":
        ended = max(last.started_unix_ns, last_ns or 0)
        last = structs.replace(last, status="killed", ended_unix_ns=ended, wall_time_s=(ended - last.started_unix_ns) / 1e9)
    return (*before, last)


def _sentence(error: BaseException | None) -> str:
    """The sentence of an error, or of the first one in a group of foreign ones."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"


def _totals(progress: Progress, graded: GradingStatistics, resume_state: ResumeState) -> Totals:
    return Totals(
        chains_done=progress.done,
        chains_failed=progress.failed,
        chains_cancelled=progress.cancelled,
        graded=resume_state.graded + graded.graded,
        correct=resume_state.correct + graded.correct,
        errors=_by_type(progress.errors),
        steps=progress.steps,
        decisions=dict(progress.decisions),
        output_tokens=progress.output_tokens,
    )


def _by_type(errors: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Failed chains: error, stage, number."""
    found: dict[str, dict[str, int]] = {}
    for (error, stage), count in sorted(errors.items()):
        found.setdefault(error, {})[stage] = count
    return found
