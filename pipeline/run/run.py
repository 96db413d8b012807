"""A run from its options to its end, in two phases: `prepare.prepared` checks, holds the folder and reads it; `solve` opens the engines,
solves what is left and records how it ended.

Nothing is printed, no signal is handled and no argument of the process is read: the command line and the Python API do what each of them
needs around it.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import msgspec
from msgspec import Struct, structs

from pipeline.engine import Engine, EngineStatistics
from pipeline.engines.registry import notices, open_engines
from pipeline.engines.startup import listening
from pipeline.errors import Interrupted, OutOfMemory, PipelineError, is_out_of_memory
from pipeline.grading.grader import BESIDE_ENGINES, Grader, default_workers
from pipeline.graph.plan import Plan
from pipeline.graph.spec import EngineSpec
from pipeline.options import RunOptions
from pipeline.run.chains import Chains, Facts, OpenEngines, statistics, suited, unknown_caches
from pipeline.run.loop import Stop, in_loop, loop_clock
from pipeline.run.observer import Attend, Observer, View
from pipeline.run.prepare import Prepared, load_plan, prepared
from pipeline.runtime.admission.feed import Start
from pipeline.runtime.clock import Clock
from pipeline.runtime.inline_grader import GradingStatistics, InlineGrader, open_inline_grader
from pipeline.runtime.rows import FirstRows, RowSink, Setbacks, Strangers, Tee
from pipeline.store.events import TABLES, ProblemRow
from pipeline.store.kept_problems import TABLE as KEPT
from pipeline.store.kept_problems import Problems, problem_row
from pipeline.store.parts import count_rows
from pipeline.store.recorder import WRITE_EVERY_S, Recorder, open_recorder
from pipeline.store.resume import drop_unfinished
from pipeline.store.resume_state import ResumeState
from pipeline.store.run_file import RunFile, Session, Status, Totals, versions
from pipeline.store.run_store import RunStore
from pipeline.tasks import unwrapped

T = TypeVar("T")
Solve = Callable[..., Awaitable["SessionResult"]]
"""What has the signature of `solve`, and carries a session out in the running event loop as that does."""


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
    fail_on_error: float = 0.0
    """The share of the chains that may fail."""

    @property
    def exit_code(self) -> int:
        """0: all chains finished, 1: the run could not continue, 3: more chains failed than `fail_on_error` allows, 130: interrupted."""
        if self.run.status == "interrupted":
            return 130
        if self.run.status == "failed":
            return 1
        return 3 if failed_too_often(self.done, self.failed, self.fail_on_error) else 0

    @classmethod
    def of_old(cls, run: Prepared) -> "SessionResult":
        """The result of resuming a run that is finished."""
        assert run.old is not None, "only what is there can be finished"
        totals, share = run.old.totals, run.options.fail_on_error
        done, failed = totals.chains_done, totals.chains_failed
        return cls(folder=run.folder, run=run.old, done=done, failed=failed, nothing_to_do=True, fail_on_error=share)


def failed_too_often(done: int, failed: int, share: float) -> bool:
    """True if more than this share of the chains that are over failed."""
    return failed > share * (done + failed)


def run(
    options: RunOptions,
    observer: Observer | None = None,
    *,
    plan: Plan | None = None,
    attend: Attend | None = None,
    command: Sequence[str] = (),
    carry_out: Solve | None = None,
    problems: Problems | None = None,
) -> SessionResult:
    """Solve the input, or what is left of it. Errors before a chain could start are raised; every later end is a `SessionResult`.

    `plan`: by default that of the options; `problems`: by default its input; `attend` is a task alongside the run that may stop it;
    `command` is recorded in `run.json`; `carry_out` solves, by default on the engines of this process. Not for use in a running event loop.
    """
    plan = plan or load_plan(options.graph, options.bound_engines, options.settings)
    observer = observer or Observer()
    for sentence in notices(plan.engines):
        observer.tell(sentence)
    with prepared(options, plan, problems, command=command) as found:
        if found.nothing_to_do:
            return SessionResult.of_old(found)
        observer.ready(found)
        for sentence in found.remarks:
            observer.tell(sentence)
        # What carries it out elsewhere waits in real time for simulated time to pass there.
        virtual = found.virtual_time and carry_out is None
        return in_loop(partial(carry_out or solve, found, observer, attend=attend), virtual=virtual)


async def solve(run: Prepared, observer: Observer, stop: Stop | None = None, *, attend: Attend | None = None) -> SessionResult:
    """Open the engines of the plan and solve. Raises the error, or `Interrupted`, that keeps any chain from starting."""

    async def opened(stop: Stop) -> SessionResult:
        opening = time.monotonic()
        with run.announced():
            async with opened_engines(run.plan.engines, observer) as engines:
                return await solve_on(engines, run, observer, stop, opening)

    return await attended(opened, stop or Stop(), attend)


async def attended(main: Callable[[Stop], Awaitable[T]], stop: Stop, attend: Attend | None) -> T:
    """The result of `main`, which `stop` may end; `attend` runs alongside it. Raises `Interrupted` where `main` was ended without one."""
    result: T | None = None
    with unwrapped():
        async with anyio.create_task_group() as tasks:
            if attend is not None:
                await tasks.start(attend, stop)
            with stop.guard():
                result = await main(stop)
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
    engines: Mapping[str, Engine], run: Prepared, observer: Observer, stop: Stop | None = None, opening: float | None = None
) -> SessionResult:
    """Solve on `engines` that are open already, and stay open; of their totals only what this run adds is recorded.

    `opening`: when their opening began, by `time.monotonic`; None: they were open before.
    """
    opened = await suited(run, engines, observer.tell)
    begun = begin(run, opened.facts, 0.0 if opening is None else time.monotonic() - opening)
    result = await execute(begun, opened, observer, stop or Stop())
    return structs.replace(result, notices=opened.notices)


def begin(run: Prepared, facts: Facts, startup_s: float) -> Prepared:
    """Begin the session: write `run.json`. Raises `RunFolderError`."""
    record, rewritten = run.record, run.rewritten_bytes
    if run.folder is not None and run.old is not None:
        rewritten += drop_unfinished(run.folder, run.options.retry_failed)
    before = record.sessions[-1].ended_unix_ns or 0 if record.sessions else 0
    session = Session(
        # The simulated hours of an earlier session may end after the real time.
        started_unix_ns=max(run.starts_unix_ns or time.time_ns(), before + 1),
        startup_s=startup_s,
        rewritten_bytes=rewritten,
        command=record.command,
        versions=versions(),
    )
    stated = {role: dict(each) for role, each in facts.items()}
    record = structs.replace(record, sessions=(*record.sessions, session), engine_facts=stated).with_session(session)
    if run.folder is not None:
        record.write(run.folder)
    return structs.replace(run, record=record)


async def execute(run: Prepared, opened: OpenEngines, observer: Observer, stop: Stop) -> SessionResult:
    """Solve the chains until all are over, an engine or the folder is lost, or the run is stopped; then write the end into `run.json`."""
    cpu = time.process_time()
    clock = Clock(run.session.started_unix_ns, loop_clock(run.virtual_time))
    before = statistics(opened.engines)
    work: Chains | None = None
    grading: InlineGrader | None = None
    error: BaseException | None = Interrupted()
    try:
        with stop.guard():
            async with _open_rows(run, observer.sink) as rows:
                grading = rows
                for sentence in unknown_caches(run, run.record.engine_facts):
                    observer.tell(sentence)
                setbacks = Setbacks(observer.tell)
                watches: list[RowSink] = [setbacks, Strangers(run.plan.engines, observer.tell)]
                if run.arrivals is None:  # a server serves on
                    watches.append(FirstRows(observer.tell))
                work = Chains(run, opened, Tee(rows, *watches), clock)
                stop.drained_by(work.drain)
                with observer.watch(_view(run, work, rows, lambda: setbacks.reasons(clock.unix_ns(clock.now())))):
                    await work.run()
            if work.exhausted:
                error = None
    except PipelineError as failure:
        error = failure
        if work is None:
            raise
    except BaseException as failure:
        if not is_out_of_memory(failure):
            error = failure
            raise
        error = OutOfMemory()
        if work is None:
            raise error from failure
    finally:
        ended = clock.now() if work is None or work.ended is None else work.ended
        spent = {role: now.since(before[role]) for role, now in statistics(opened.engines).items()}
        record = _ended_record(run, spent, work, error, _graded(grading), clock.unix_ns(ended), time.process_time() - cpu)
        if run.folder is not None:
            record.write(run.folder)
    if work is None:
        raise Interrupted
    stop.over()
    assert error is None or isinstance(error, PipelineError)
    progress, share = work.progress, run.options.fail_on_error
    return SessionResult(folder=run.folder, run=record, done=progress.done, failed=progress.failed, error=error, fail_on_error=share)


def _graded(grading: InlineGrader | None) -> GradingStatistics:
    return GradingStatistics(0, 0, 0) if grading is None else grading.statistics()


def _view(run: Prepared, work: Chains, rows: InlineGrader, setbacks: Callable[[], Sequence[str]]) -> View:
    """What a display may see of the session."""
    return View(
        plan=run.plan,
        folder=run.folder,
        chains=run.chains,
        samples=run.record.samples,
        schedule=run.options.schedule,
        batch_size=run.options.batch_size,
        virtual_time=run.virtual_time,
        simulated=any(facts.get("answers") == "simulated" for facts in run.record.engine_facts.values()),
        progress=work.progress,
        lanes=work.lanes,
        engines=work.engines,
        admission=work.admission,
        totals=lambda: _totals(work, rows.statistics(), run.resume_state),
        setbacks=setbacks,
    )


def _ended_record(
    run: Prepared,
    spent: dict[str, EngineStatistics],
    work: Chains | None,
    error: BaseException | None,
    graded: GradingStatistics,
    ended_unix_ns: int,
    cpu_s: float,
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
        engine_statistics=spent,
    )
    totals = Totals() if work is None else _totals(work, graded, run.resume_state)
    failure = _sentence(error) if status == "failed" else None
    record = structs.replace(run.record, status=status, error=failure, totals=totals)
    if run.arrivals is not None:
        rows, chains = (0 if run.folder is None else count_rows(run.folder, table) for table in (KEPT, "chains"))
        record = structs.replace(record, input=structs.replace(record.input, rows=rows, chains=chains))
    return record.with_session(session)


@asynccontextmanager
async def _open_rows(run: Prepared, sink: RowSink | None) -> AsyncIterator[InlineGrader]:
    """Open what takes the rows of the trace: they are graded, then written into the run folder, if there is one, and given to `sink`."""
    virtual = run.virtual_time
    sinks: list[RowSink] = [] if sink is None else [sink]
    with Grader() if virtual else Grader(default_workers(), nice=BESIDE_ENGINES) as grader:
        async with AsyncExitStack() as stack:
            if run.folder is not None:
                tables: Mapping[str, type[Struct]] = TABLES if run.arrivals is None else {KEPT: ProblemRow, **TABLES}
                store = RunStore(run.folder, tables, sync_every_s=WRITE_EVERY_S if virtual else 0.0)
                recorder = await stack.enter_async_context(open_recorder(store, virtual=virtual))
                sinks.insert(0, recorder)
                if run.arrivals is not None:
                    run.arrivals.taken = partial(_keep_problem, recorder)
            target = sinks[0] if len(sinks) == 1 else Tee(*sinks)
            yield await stack.enter_async_context(open_inline_grader(target, grader, virtual, run.problem_rows()))


def _keep_problem(recorder: Recorder, start: Start) -> None:
    """Record the problem of a chain that begins, unless it is another chain's."""
    if start.sample_index == 0:
        recorder.problem(problem_row(start.item, msgspec.json.encode(start.record or {}).decode()))


def _sentence(error: BaseException | None) -> str:
    """The message of an error, or of the first error in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"


def _totals(work: Chains, graded: GradingStatistics, resume_state: ResumeState) -> Totals:
    progress = work.progress
    return Totals(
        chains_done=progress.done,
        chains_failed=progress.failed,
        chains_cancelled=progress.cancelled,
        pauses=work.pauses,
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
