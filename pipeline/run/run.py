"""A run from its options to its end: `prepare` checks and reads it, `solve` opens the engines and solves what is left, `finish` records how
it ended.

Nothing is printed, no signal is handled and no argument of the process is read: the command line and the Python API do what each of them
needs around it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from pipeline.engine import Engine
from pipeline.engines.meter import Listener
from pipeline.engines.registry import open_engines
from pipeline.errors import Interrupted, OutOfMemory, PipelineError, is_out_of_memory
from pipeline.grading.grader import BESIDE_ENGINES, Grader, default_workers
from pipeline.graph.plan import Plan
from pipeline.graph.rules import check_needs, unmet_needs
from pipeline.options import RunOptions
from pipeline.run.loop import Attend, Stop, attended, in_loop
from pipeline.run.prepare import Prepared, load_plan, prepare
from pipeline.runtime.admission.admission import Admission
from pipeline.runtime.admission.cache import CacheLimit, cache_limits, call_tokens
from pipeline.runtime.admission.feed import Feed, InputFeed, Start
from pipeline.runtime.chain_recorder import Recording
from pipeline.runtime.clock import Clock
from pipeline.runtime.executor import Executor, Fitted, Settings
from pipeline.runtime.inline_grader import open_inline_grader
from pipeline.runtime.progress import Progress
from pipeline.runtime.rows import FirstRows, RowSink, Tee
from pipeline.runtime.schedule import Lockstep, Schedule
from pipeline.stages.build import build_stages, builders_of, cannot_of
from pipeline.store.kept_problems import Problems, problem_row
from pipeline.store.recorder import WRITE_EVERY_S, Recorder, open_recorder
from pipeline.store.resume import drop_unfinished
from pipeline.store.rows import TABLES
from pipeline.store.run_file import RunFile, Session, Status, Totals
from pipeline.store.store import KEPT, RunStore, count_rows


class Observer(Struct, frozen=True, kw_only=True):
    """What a caller may see of a run in progress: callbacks, which do nothing by default."""

    starting: Callable[[], Listener] = Listener
    """Gives what hears the engines that start."""
    ready: Callable[[Prepared], object] = lambda ready: None
    """Is called with a run that was checked, before its engines are opened."""
    watch: Callable[[Prepared, Executor], AbstractContextManager[Any]] = lambda run, work: nullcontext()
    """Displays the progress of the run, whose live objects the executor has, until its context manager ends; not on replicas."""
    tell: Callable[[str], object] = lambda sentence: None
    """Gets the notices that the user should read."""
    sink: RowSink | None = None
    """Gets every row of the trace, besides the run folder."""


class SessionResult(Struct, frozen=True, kw_only=True):
    """How a session of a run ended."""

    folder: Path | None
    """The run folder; None for a run that writes nothing to disk."""
    run: RunFile
    """The run as `run.json` holds it."""
    error: PipelineError | None = None
    """What ended the session before all chains were over."""
    nothing_to_do: bool = False
    """The run was to be resumed and was finished already."""

    @property
    def done(self) -> int:
        """Finished chains of all sessions."""
        return self.run.totals.chains_done

    @property
    def failed(self) -> int:
        """Failed chains of all sessions."""
        return self.run.totals.chains_failed

    @property
    def exit_code(self) -> int:
        """0: all chains finished, 1: the run could not continue, 3: more chains failed than `fail_on_error` allows, 130: interrupted."""
        if self.run.status == "interrupted":
            return 130
        if self.run.status == "failed":
            return 1
        return 3 if failed_too_often(self.done, self.failed, self.run.options.fail_on_error) else 0


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
    problems: Problems | None = None,
) -> SessionResult:
    """Solve the input, or what is left of it. Errors before a chain could start are raised; every later end is a `SessionResult`.

    `plan`: by default that of the options; `problems`: by default its input; `attend` is a task alongside the run that may stop it;
    `command` is recorded in `run.json`. Not for use in a running event loop.
    """
    plan = plan or load_plan(options.graph, options.bound_engines, options.settings)
    observer = observer or Observer()
    with prepare(options, plan, problems, command=command) as ready:
        if ready.nothing_to_do:
            return SessionResult(folder=ready.folder, run=ready.record, nothing_to_do=True)
        observer.ready(ready)
        for sentence in ready.told:
            observer.tell(sentence)
        # What carries it out elsewhere waits in real time for simulated time to pass there.
        virtual = ready.record.virtual_time and not ready.on_replicas
        return in_loop(partial(attended, partial(solver_of(ready), ready, observer), attend), virtual=virtual)


def solver_of(run: Prepared) -> Callable[..., Awaitable[SessionResult]]:
    """What carries out a session of the run in the running event loop: `solve`, or replicas in the same way."""
    return import_module("pipeline.cluster.replicas").solve_on_replicas if run.on_replicas else solve


async def solve(
    run: Prepared,
    observer: Observer,
    stop: Stop | None = None,
    *,
    engines: Mapping[str, Engine] | None = None,
    feed: Feed | None = None,
) -> SessionResult:
    """Solve on `engines`, which stay open; by default on those of the plan, opened and closed here. `feed` gives the chains; by default the
    input does. Raises the error that keeps any chain from starting."""
    specs = run.plan.engines
    async with open_engines(specs, observer.starting()) if engines is None else nullcontext(engines) as found:
        fitted = await fit(run, {role: found[role] for role in specs}, observer.tell)
        session = Session(started_unix_ns=run.begins_unix_ns())
        return await _carry_out(run, session, fitted, observer, stop or Stop(), feed)


async def fit(run: Prepared, engines: Mapping[str, Engine], tell: Callable[[str], object]) -> Fitted:
    """Make the stages of the graph for these `engines`, about which `tell` gets notices.

    Raises `GraphError` where a tokenizer or a chat template fails, or an engine does not suit the graph.
    """
    plan = run.plan
    cannot = {role: cannot_of(engine) for role, engine in engines.items()}
    check_needs(plan, cannot)
    for error in unmet_needs(plan, cannot).values():  # without some needs a run works, but not as well
        tell(str(error))
    builders = builders_of(plan, {role: engine.tokenizer for role, engine in engines.items()})
    return Fitted(plan, engines, builders, build_stages(plan, builders, str(run.options.graph), cannot=cannot))


def finish(run: Prepared, record: RunFile, error: BaseException | None, totals: Totals, **measured: Any) -> RunFile:
    """The record of the run at the end of a session, which is written; one that was cancelled from outside is `interrupted`. `measured` are
    fields of the session."""
    stopped = isinstance(error, Interrupted) or not isinstance(error, Exception)
    status: Status = "finished" if error is None else "interrupted" if stopped else "failed"
    sessions = (*record.sessions[:-1], structs.replace(record.sessions[-1], status=status, **measured))
    sentence = str(error) if isinstance(error, PipelineError) else f"{type(error).__name__}: {error}"
    failure = sentence if status == "failed" else None
    record = structs.replace(record, status=status, error=failure, totals=totals, sessions=sessions)
    if run.folder is None:
        return record
    if run.options.served:
        rows, chains = (count_rows(run.folder, table) for table in (KEPT, "chains"))
        record = structs.replace(record, input=structs.replace(record.input, rows=rows, chains=chains))
    record.write(run.folder)
    return record


async def _carry_out(run: Prepared, session: Session, fitted: Fitted, observer: Observer, stop: Stop, feed: Feed | None) -> SessionResult:
    """Solve chains in a new session until all are over, an engine or the folder is lost, or the run is stopped. Begin and end are written
    into `run.json`."""
    plan, options, engines = run.plan, run.options, fitted.engines
    facts = {role: {**each.facts, "max_model_len": each.max_model_len, "vocab_size": each.vocab_size} for role, each in engines.items()}
    record = structs.replace(run.record, sessions=(*run.record.sessions, session), engine_facts=facts)
    if run.folder is not None:
        if run.record.sessions:
            drop_unfinished(run.folder, options.retry_failed)
        record.write(run.folder)
    clock = Clock(session.started_unix_ns, asyncio.get_running_loop().time)
    by_cache = options.admission == "cache"
    admission = _admission(cache_limits(plan, record.engine_facts), observer) if by_cache else None
    rooms = call_tokens(plan, record.engine_facts) if by_cache else {}
    settings = Settings(seed=options.seed, cache_tokens=rooms, virtual_time=run.record.virtual_time)
    progress = Progress(plan, run.resume_state, observer.tell, clock, admission)
    schedule = (Lockstep if options.schedule == "lockstep" else Schedule)(options.max_live, admission)
    cpu, before = time.process_time(), {role: engine.statistics() for role, engine in engines.items()}
    ended: float | None = None  # grading and writing that continue after the last chain are not part of the run's time
    error: BaseException | None = Interrupted()
    try:
        with stop.guard():
            async with AsyncExitStack() as stack:
                rows, recorder = await _open_rows(stack, run, observer, progress)
                recording = Recording(run_id=record.run_id, rows=rows, progress=progress, clock=clock, resume_state=run.resume_state)
                work = Executor(fitted, schedule, recording, settings)
                places = run.record.input.samples
                chains: Feed = InputFeed(run.problems, options.samples, places, run.resume_state.is_over, threads=not settings.virtual_time)
                if feed is not None and recorder is not None:
                    chains = _KeptFeed(feed, recorder)
                with observer.watch(run, work), stop.draining(work.drain):
                    await work.run(chains)
                    ended = clock.now()
            error = None if work.exhausted else error
    except BaseException as failure:
        error = OutOfMemory() if is_out_of_memory(failure) else failure
        if not isinstance(error, PipelineError):
            raise
    finally:
        spent = {role: engine.statistics().plus(before[role], -1) for role, engine in engines.items()}
        ended_ns = clock.unix_ns(clock.now() if ended is None else ended)
        cpu = time.process_time() - cpu
        record = finish(run, record, error, progress.totals(), ended_unix_ns=ended_ns, orchestrator_cpu_s=cpu, engine_statistics=spent)
    stop.over()
    assert error is None or isinstance(error, PipelineError)
    return SessionResult(folder=run.folder, run=record, error=error)


def _admission(limits: Mapping[str, CacheLimit | None], observer: Observer) -> Admission | None:
    """What decides which chains continue, by the caches of engines; None if only the batch size does."""
    for role, limit in limits.items():
        if limit is None:
            observer.tell(f"engine {role!r} does not report the size of its cache: chains will not pause to make room in it")
    known = [limit for limit in limits.values() if limit is not None]
    return Admission(known) if known else None


async def _open_rows(stack: AsyncExitStack, run: Prepared, observer: Observer, progress: Progress) -> tuple[RowSink, Recorder | None]:
    """What takes the rows of the trace until `stack` ends: they are graded, counted, and given to the run folder and the observer, if there
    are any."""
    virtual, served = run.record.virtual_time, run.options.served
    grader = stack.enter_context(Grader() if virtual else Grader(default_workers(), nice=BESIDE_ENGINES))
    sinks: list[RowSink] = [progress, *filter(None, [observer.sink])]
    recorder = None
    if run.folder is not None:
        store = RunStore(run.folder, (KEPT, *TABLES) if served else TABLES, sync_every_s=WRITE_EVERY_S if virtual else 0.0)
        recorder = await stack.enter_async_context(open_recorder(store, virtual=virtual))
        sinks.insert(0, recorder)
    graded = await stack.enter_async_context(open_inline_grader(Tee(*sinks), grader, virtual))
    return graded if served else Tee(graded, FirstRows()), recorder  # a server serves on


class _KeptFeed:
    """A `Feed` of requests whose problems are recorded as their first chains begin."""

    def __init__(self, feed: Feed, recorder: Recorder) -> None:
        self._feed, self._recorder = feed, recorder

    async def next(self) -> Start | None:
        start = await self._feed.next()
        if start is not None and start.sample_index == 0:
            self._recorder.problem(problem_row(start.item, msgspec.json.encode(start.record or {}).decode()))
        return start
