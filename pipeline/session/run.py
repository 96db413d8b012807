"""One session of a run, in four phases: preflight, open, execute, finish. Each takes what the one before it made, frozen.

    options --claimed, preflight--> Preflight --take_up--> Ready --opened--> Opened --execute--> SessionResult

Nothing is printed, no signal is handled and no argument of the process is read: the command line and the Python API do what
each of them needs around it.
"""

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from msgspec import Struct, structs

from pipeline.data.many_files import files_of, open_files
from pipeline.data.problems import Problems
from pipeline.engine import Engine, EngineStatistics, Fact
from pipeline.engines.registry import open_engines
from pipeline.engines.startup import Listener, listening
from pipeline.errors import InputError, Interrupted, OutOfMemory, PipelineError, is_out_of_memory
from pipeline.grading.grader import BESIDE_ENGINES, Grader, default_workers
from pipeline.graph.plan import Plan
from pipeline.graph.spec import EngineSpec
from pipeline.reasoning.prompts import PromptBuilder
from pipeline.runtime.admission.admission import Admission
from pipeline.runtime.admission.cache import CacheLimit, cache_limits
from pipeline.runtime.admission.feed import InputFeed
from pipeline.runtime.chain_recorder import Clock, Progress
from pipeline.runtime.executor import Executor, Settings
from pipeline.runtime.inline_grader import GradingStatistics, InlineGrader, open_inline_grader
from pipeline.runtime.lane import Lane
from pipeline.runtime.resume_state import ResumeState
from pipeline.runtime.rows import RowSink, Tee
from pipeline.runtime.schedule import SCHEDULES
from pipeline.session.builders import prompt_builders
from pipeline.session.claim import Claim, claimed
from pipeline.session.loop import in_loop, loop_clock
from pipeline.session.modes import MOST_CHANGES, announcements, new_control, recorded_changes
from pipeline.session.options import RunOptions
from pipeline.session.order import start_order
from pipeline.session.preflight import Preflight, load_plan, new_record, notices, preflight
from pipeline.session.resume import drop_unfinished, mend_chains, read_resume_state
from pipeline.session.stop import Stop
from pipeline.stages.base import Stage
from pipeline.stages.build import build_stages, check_engines
from pipeline.tasks import unwrapped
from pipeline.trace.checking.inventory import check_files
from pipeline.trace.kept_problems import TABLE as KEPT
from pipeline.trace.kept_problems import keep_problems, kept_problems
from pipeline.trace.read import count_rows
from pipeline.trace.recorder import WRITE_EVERY_S, open_recorder
from pipeline.trace.run_file import ModeChange, RunFile, Session, Status, Totals, versions
from pipeline.trace.store import TraceStore, recover


class View(Struct, frozen=True, kw_only=True):
    """A run that goes on, for a display: live objects that only the run changes."""

    plan: Plan
    folder: Path | None
    chains: int
    """The number of chains, those that have not started included."""
    schedule: str
    batch_size: int
    virtual_time: bool
    progress: Progress
    lanes: dict[str, Lane]
    engines: Mapping[str, Engine]
    clock: Clock
    admission: Admission | None = None
    """What lets chains pause; None: nothing does."""
    graded: Callable[[], tuple[int, int]] = lambda: (0, 0)
    """How many chains are graded so far, and how many of these are right."""


Watch = Callable[[View], AbstractContextManager[Any]]
"""Displays a run until its context manager ends."""
Tell = Callable[[str], object]
"""Shows a sentence to a person."""
Attend = Callable[..., Coroutine[Any, Any, Any]]
"""`attend(stop, task_status=...)`: a task beside a run that may stop it; it is cancelled when the run is over."""
Starting = Callable[[Mapping[str, EngineSpec]], AbstractContextManager[Listener]]
"""Displays how the engines of these specs start, until its context manager ends; that gives what hears them."""


class Observer(Struct, frozen=True, kw_only=True):
    """What is called while a run goes on; by default nothing."""

    starting: Starting = lambda specs: nullcontext(Listener())
    """Displays the start of the engines."""

    watch: Watch = lambda view: nullcontext()
    """Displays the progress of the run."""
    tell: Tell = lambda sentence: None
    """Gets the sentences that a person should read before the run."""
    sink: RowSink | None = None
    """Gets every row of the trace, besides the run folder."""


class SessionResult(Struct, frozen=True, kw_only=True):
    """How a session of a run ended."""

    folder: Path | None
    """The run folder; None for a run that writes nothing to disk."""
    run: RunFile
    """The run as `run.json` holds it."""
    done: int
    """Finished chains of all sessions."""
    failed: int
    """Failed chains of all sessions."""
    error: PipelineError | None = None
    """What ended the session before all chains were over."""
    notices: tuple[str, ...] = ()
    """Sentences that a person should read, about the engines as they opened."""
    nothing_to_do: bool = False
    """The run was to be resumed and was finished already."""

    @property
    def exit_code(self) -> int:
        """0: all chains finished, 1: the run could not go on, 3: some chains failed, 130: interrupted."""
        if self.run.status == "interrupted":
            return 130
        if self.run.status == "failed":
            return 1
        return 3 if self.failed else 0


class Ready(Struct, frozen=True, kw_only=True):
    """A run whose folder is held by this process, and what earlier sessions left in it."""

    checked: Preflight
    record: RunFile
    """The content of `run.json`, with the earlier sessions."""
    resume_state: ResumeState
    """What earlier sessions left; empty for a new run."""
    rewritten_bytes: int = 0
    """Bytes of write-ahead files that were made parts, and of parts without rows that did not hang together."""
    remarks: tuple[str, ...] = ()
    """Sentences for a person about what was found in the folder."""


class Opened(Struct, frozen=True, kw_only=True):
    """A run whose engines are open and whose chains may start."""

    ready: Ready
    record: RunFile
    """The content of `run.json`, with this session."""
    engines: Mapping[str, Engine]
    builders: Mapping[str, PromptBuilder]
    stages: Mapping[str, Stage]

    @property
    def cache_limits(self) -> dict[str, CacheLimit | None]:
        """How much fits into the cache of each engine that chains come back to, by role; None where it does not say."""
        return cache_limits(self.ready.checked.plan, self.record.engine_facts)

    @property
    def session(self) -> Session:
        """The session that is being carried out."""
        return self.record.sessions[-1]


def run(
    options: RunOptions, observer: Observer | None = None, *, attend: Attend | None = None, command: Sequence[str] = ()
) -> SessionResult:
    """Solve the input, or what is left of it. Errors before a chain could start are raised; every later end is a `SessionResult`.

    `attend` is a task beside the run that may stop it; `command` is recorded in `run.json`. Not for use in a running event loop.
    """
    plan, observer = load_plan(options.graph, options.engines, options.settings), observer or Observer()
    for sentence in notices(plan):
        observer.tell(sentence)
    with claimed(options, plan.name) as claim:
        checked = preflight(options, plan, problems_of(options, claim), claim)
        if claim.nothing_to_do:
            return nothing_to_do(claim)
        ready = take_up(checked, command)
        for sentence in ready.remarks:
            observer.tell(sentence)
        return in_loop(partial(solve, ready, observer, attend=attend), virtual=checked.virtual_time)


def problems_of(options: RunOptions, claim: Claim) -> Problems:
    """The problems of the input, or, where that is gone, what the run that is to be resumed has kept of it."""
    try:
        files = [file for path in options.inputs for file in files_of(path)]
        here = all(file.exists() for file in files)
    except InputError:
        here = False
    if not here and claim.old is not None and claim.folder is not None and options.part == claim.old.input.part:
        kept = kept_problems(claim.folder, claim.old.input)
        if kept is not None:
            return kept
    return open_files(options.inputs, options.columns, options.part)


def nothing_to_do(claim: Claim) -> SessionResult:
    """The result of resuming a run that is finished."""
    assert claim.old is not None, "only what is there can be finished"
    totals = claim.old.totals
    return SessionResult(folder=claim.folder, run=claim.old, done=totals.chains_done, failed=totals.chains_failed, nothing_to_do=True)


def take_up(checked: Preflight, command: Sequence[str] = ()) -> Ready:
    """Read what earlier sessions left in the run folder, which this process holds; write-ahead files are made parts first."""
    record = new_record(checked, command)
    if checked.folder is None or checked.old is None:
        return Ready(checked=checked, record=record, resume_state=ResumeState())
    remarks = check_files(checked.folder)
    rewritten = recover(checked.folder)
    taken_back = mend_chains(checked.folder, checked.old)
    options = checked.options
    state = read_resume_state(checked.folder, options.samples, options.retry_failed)
    sessions = _ended_sessions(checked.old, state.last_call_unix_ns)
    record = structs.replace(record, sessions=sessions, mode_changes=checked.old.mode_changes)
    remarks += [taken_back.sentence] if taken_back.sentence else []
    rewritten += taken_back.written_bytes
    return Ready(checked=checked, record=record, resume_state=state, rewritten_bytes=rewritten, remarks=tuple(remarks))


async def solve(ready: Ready, observer: Observer, stop: Stop | None = None, *, attend: Attend | None = None) -> SessionResult:
    """Open the engines of the plan and solve. Raises the error, or `Interrupted`, that keeps any chain from starting."""
    stop, result = stop or Stop(), None
    with unwrapped():
        async with anyio.create_task_group() as tasks:
            if attend is not None:
                await tasks.start(attend, stop)
            opening = time.monotonic()
            with stop.guard():
                async with opened_engines(ready.checked.plan.engines, observer) as engines:
                    result = await solve_on(engines, ready, observer, stop, opening)
            tasks.cancel_scope.cancel()
    if result is None:
        raise Interrupted
    return result


@asynccontextmanager
async def opened_engines(specs: Mapping[str, EngineSpec], observer: Observer) -> AsyncIterator[dict[str, Engine]]:
    """Engines of these specs, which `observer` displays while they start; closed at the end."""
    async with AsyncExitStack() as stack:
        with observer.starting(specs) as listener, listening(listener):
            engines = await stack.enter_async_context(open_engines(specs))
        yield engines


async def solve_on(
    engines: Mapping[str, Engine], ready: Ready, observer: Observer, stop: Stop | None = None, opening: float | None = None
) -> SessionResult:
    """Solve on `engines` that are open already, and stay open; of their totals only what this run adds is recorded.

    `opening`: when their opening began, by `time.monotonic`; None: they were open before.
    """
    engines = {role: engines[role] for role in ready.checked.plan.engines}
    builders = await prompt_builders(ready.checked, engines)
    now = time.monotonic()
    said = announcements(ready.checked.plan, ready.checked.options, engines)
    for sentence in said:
        observer.tell(sentence)
    result = await execute(opened(ready, engines, builders, now - (now if opening is None else opening)), observer, stop or Stop())
    return structs.replace(result, notices=said)


def opened(ready: Ready, engines: Mapping[str, Engine], builders: Mapping[str, PromptBuilder], startup_s: float) -> Opened:
    """Build the stages for open engines, write `run.json` and the problems. Raises `GraphError` where an engine does not suit the graph."""
    checked, record = ready.checked, ready.record
    check_engines(checked.plan, engines)
    stages = build_stages(checked.plan, builders, str(checked.options.graph))
    rewritten = ready.rewritten_bytes
    if checked.folder is not None and checked.old is not None:
        rewritten += drop_unfinished(checked.folder, checked.options.retry_failed)
    before = record.sessions[-1].ended_unix_ns or 0 if record.sessions else 0
    session = Session(
        started_unix_ns=max(time.time_ns(), before + 1),  # the simulated hours of an earlier session may end after the real time
        startup_s=startup_s,
        rewritten_bytes=rewritten,
        command=record.command,
        versions=versions(),
    )
    facts = {role: _facts(engine) for role, engine in engines.items()}
    record = structs.replace(record, sessions=(*record.sessions, session), engine_facts=facts).with_session(session)
    if checked.folder is not None:
        record.write(checked.folder)
        if checked.options.keep_input and count_rows(checked.folder, KEPT) != checked.fingerprint.rows:
            keep_problems(checked.folder, checked.problems)
    return Opened(ready=ready, record=record, engines=engines, builders=builders, stages=stages)


def _facts(engine: Engine) -> dict[str, Fact]:
    return {**engine.facts, "max_model_len": engine.max_model_len, "vocab_size": engine.vocab_size}


async def execute(run: Opened, observer: Observer, stop: Stop) -> SessionResult:
    """Run the chains until all are over, an engine or the folder is lost, or the run is stopped; then write the end into `run.json`."""
    checked, cpu = run.ready.checked, time.process_time()
    clock = Clock(run.session.started_unix_ns, loop_clock(checked.virtual_time))
    before = {role: engine.statistics() for role, engine in run.engines.items()}
    chains: Chains | None = None
    error: BaseException | None = Interrupted()
    try:
        with stop.guard():
            async with _open_rows(checked, observer.sink) as rows:
                for sentence in unknown_caches(run):
                    observer.tell(sentence)
                chains = Chains(run, rows, clock)
                stop.drained_by(chains.executor.drain)
                await chains.run(observer)
            if chains.executor.exhausted:
                await check_input(checked)
                error = None
    except PipelineError as failure:
        error = failure
        if chains is None:
            raise
    except BaseException as failure:
        if not is_out_of_memory(failure):
            error = failure
            raise
        error = OutOfMemory()
        if chains is None:
            raise error from failure
    finally:
        ended = clock.now() if chains is None or chains.ended is None else chains.ended
        spent = {role: engine.statistics().since(before[role]) for role, engine in run.engines.items()}
        record = ended_record(run, clock.unix_ns(ended), time.process_time() - cpu, spent, error, chains)
        if checked.folder is not None:
            record.write(checked.folder)
    if chains is None:
        raise Interrupted
    progress = chains.executor.progress
    assert error is None or isinstance(error, PipelineError)
    return SessionResult(folder=checked.folder, run=record, done=progress.done, failed=progress.failed, error=error)


async def check_input(checked: Preflight) -> None:
    """Raise `InputChanged` where the input is not what it was at preflight, although every chain was of the input as it was."""
    if checked.virtual_time:
        checked.problems.check_unchanged()
    else:
        await anyio.to_thread.run_sync(checked.problems.check_unchanged)


def admission_of(run: Opened) -> Admission | None:
    """What decides which chains go on; None where the batch size alone does."""
    if run.ready.checked.options.admission == "batch":
        return None
    limits = [limit for limit in run.cache_limits.values() if limit is not None]
    return Admission(limits) if limits else None


def unknown_caches(run: Opened) -> list[str]:
    """A sentence for each engine whose cache should limit the live chains and which does not state the size of it."""
    if run.ready.checked.options.admission == "batch":
        return []
    facts = run.record.engine_facts  # a recording, whose times stay as they are, has no cache
    unknown = [role for role, limit in run.cache_limits.items() if limit is None and "replay" not in facts[role]]
    return [f"engine {role!r} does not state the size of its cache: no chain pauses to make room in it" for role in unknown]


class Chains:
    """The executor of a session, and the moment at which its last chain was over."""

    def __init__(self, run: Opened, rows: InlineGrader, clock: Clock) -> None:
        checked = run.ready.checked
        options = checked.options
        settings = Settings(run_id=checked.run_id, seed=options.seed, samples=options.samples, virtual_time=checked.virtual_time)
        self.admission, resume_state = admission_of(run), run.ready.resume_state
        order = start_order(options.order, options.samples, resume_state.is_over, checked.earlier_thoughts)
        self._feed = InputFeed(checked.problems.unchanged(), order, threads=not checked.virtual_time)
        schedule = SCHEDULES[options.schedule](options.batch_size, self.admission)
        self.control = new_control(checked.plan, options, run.engines, checked.costs)
        self.executor = Executor(
            checked.plan, run.stages, run.engines, run.builders, schedule, rows, clock, settings, resume_state, self.control
        )
        self.ended: float | None = None
        """When the last chain was over, by the run's clock; grading and writing that go on after it are no part of the run's time."""
        self._run, self._rows, self._clock = run, rows, clock

    @property
    def mode_changes(self) -> tuple[ModeChange, ...]:
        """The decisions of this session about which chains are speculated."""
        return () if self.control is None else recorded_changes(self.control.changes, self._clock)

    @property
    def graded(self) -> GradingStatistics:
        """Counts of graded chains of this session."""
        return self._rows.statistics()

    def _all_graded(self) -> tuple[int, int]:
        """Chains of all sessions that are graded, and right ones."""
        earlier, now = self._run.ready.resume_state, self.graded
        return earlier.graded + now.graded, earlier.correct + now.correct

    async def run(self, observer: Observer) -> None:
        """Run all chains while `observer` displays them; raises `RunError` when an engine or the run folder is lost."""
        checked, executor = self._run.ready.checked, self.executor
        view = View(
            plan=checked.plan,
            folder=checked.folder,
            chains=checked.chains,
            schedule=checked.options.schedule,
            batch_size=checked.options.batch_size,
            virtual_time=checked.virtual_time,
            progress=executor.progress,
            lanes=executor.lanes,
            engines=self._run.engines,
            clock=self._clock,
            admission=self.admission,
            graded=self._all_graded,
        )
        try:
            with observer.watch(view):
                await executor.run(self._feed)
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
    """The content of `run.json` at the end of the session; a run that was cancelled from outside is `interrupted`."""
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
    if chains is not None and chains.admission is not None:
        totals = structs.replace(totals, pauses=chains.admission.pauses)
    changes = (*run.record.mode_changes, *(() if chains is None else chains.mode_changes))[-MOST_CHANGES:]
    failure = _sentence(error) if status == "failed" else None
    record = structs.replace(run.record, status=status, error=failure, totals=totals, mode_changes=changes)
    return record.with_session(session)


@asynccontextmanager
async def _open_rows(checked: Preflight, sink: RowSink | None) -> AsyncIterator[InlineGrader]:
    """Open what takes the rows of the trace: they are graded, then written into the run folder, if there is one, and given to `sink`."""
    virtual = checked.virtual_time
    sinks: list[RowSink] = [] if sink is None else [sink]
    with Grader() if virtual else Grader(default_workers(), nice=BESIDE_ENGINES) as grader:
        async with AsyncExitStack() as stack:
            if checked.folder is not None:
                store = TraceStore(checked.folder, sync_every_s=WRITE_EVERY_S if virtual else 0.0)
                sinks.insert(0, await stack.enter_async_context(open_recorder(store, virtual=virtual)))
            target = sinks[0] if len(sinks) == 1 else Tee(*sinks)
            yield await stack.enter_async_context(open_inline_grader(target, grader, virtual))


def _ended_sessions(old: RunFile, last_ns: int | None) -> tuple[Session, ...]:
    """The sessions of `old`; a session that was killed gets the end of the last call in the trace as its own."""
    *before, last = old.sessions
    if last.status == "running":
        ended = max(last.started_unix_ns, last_ns or 0)
        last = structs.replace(last, status="killed", ended_unix_ns=ended, wall_time_s=(ended - last.started_unix_ns) / 1e9)
    return (*before, last)


def _sentence(error: BaseException | None) -> str:
    """The message of an error, or of the first error in a group."""
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
    """Numbers of failed chains by type of error and stage, sorted."""
    found: dict[str, dict[str, int]] = {}
    for (error, stage), count in sorted(errors.items()):
        found.setdefault(error, {})[stage] = count
    return found
