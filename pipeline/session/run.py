"""One session of a run, in phases: preflight, resume, open, execute. Each takes what the one before it made, frozen.

    options --claimed, preflight--> Preflight --take_up--> Ready --opened_engines, begin--> Begun --execute--> SessionResult

Nothing is printed, no signal is handled and no argument of the process is read: the command line and the Python API do what
each of them needs around it.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import anyio
from msgspec import structs

from pipeline.analysis.headline.adapters import rejections
from pipeline.data.many_files import files_of, open_files
from pipeline.data.problems import Problems
from pipeline.engine import Engine, EngineStatistics
from pipeline.engines.registry import open_engines
from pipeline.engines.startup import listening
from pipeline.errors import InputError, Interrupted
from pipeline.graph.spec import EngineSpec
from pipeline.runtime.admission.feed import InputFeed
from pipeline.runtime.chain_recorder import Clock
from pipeline.runtime.rows import RowSink
from pipeline.session.chains import Chains, OpenEngines, prepare, statistics
from pipeline.session.checks.gpus import gpu_notices
from pipeline.session.checks.order import start_order
from pipeline.session.checks.replay import shortfall
from pipeline.session.claim import Claim, claimed
from pipeline.session.execute import Begun, SessionResult, begin, execute
from pipeline.session.loop import in_loop
from pipeline.session.observer import Attend, Observer, ReplicaState
from pipeline.session.options import RunOptions
from pipeline.session.preflight import load_plan, notices, preflight
from pipeline.session.ready import Ready, announced, take_up
from pipeline.session.stop import Stop
from pipeline.store.kept_problems import kept_problems
from pipeline.store.run_file import Replica
from pipeline.system.tasks import unwrapped

Solve = Callable[..., Awaitable[SessionResult]]
"""What has the signature of `solve`, and carries a session out in the running event loop as that does."""


def run(
    options: RunOptions,
    observer: Observer | None = None,
    *,
    attend: Attend | None = None,
    command: Sequence[str] = (),
    carry_out: Solve | None = None,
) -> SessionResult:
    """Solve the input, or what is left of it. Errors before a chain could start are raised; every later end is a `SessionResult`.

    `attend` is a task alongside the run that may stop it; `command` is recorded in `run.json`; `carry_out` solves, by default on the
    engines of this process. Not for use in a running event loop.
    """
    plan, observer = load_plan(options.graph, options.bound_engines, options.settings), observer or Observer()
    for sentence in (*notices(plan), *gpu_notices(plan)):
        observer.tell(sentence)
    with claimed(options, plan.name) as claim:
        # The replicas of a cluster share no simulated clock.
        virtual = None if options.cluster is None else False
        checked = preflight(options, plan, problems_of(options, claim), claim, virtual=virtual)
        if claim.nothing_to_do:
            return nothing_to_do(claim, options.fail_on_error)
        ready = take_up(checked, command)
        observer.ready(ready)
        for sentence in ready.remarks:
            observer.tell(sentence)
        return in_loop(partial(carry_out or solve, ready, observer, attend=attend), virtual=checked.virtual_time)


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


def nothing_to_do(claim: Claim, fail_on_error: float = 0.0) -> SessionResult:
    """The result of resuming a run that is finished."""
    assert claim.old is not None, "only what is there can be finished"
    totals = claim.old.totals
    return SessionResult(
        folder=claim.folder,
        run=claim.old,
        done=totals.chains_done,
        failed=totals.chains_failed,
        nothing_to_do=True,
        fail_on_error=fail_on_error,
    )


async def solve(ready: Ready, observer: Observer, stop: Stop | None = None, *, attend: Attend | None = None) -> SessionResult:
    """Open the engines of the plan and solve. Raises the error, or `Interrupted`, that keeps any chain from starting."""

    async def opened(stop: Stop) -> SessionResult:
        opening = time.monotonic()
        with announced(ready):
            async with opened_engines(ready.checked.plan.engines, observer) as engines:
                return await solve_on(engines, ready, observer, stop, opening)

    return await attended(opened, stop or Stop(), attend)


async def attended(main: Callable[[Stop], Awaitable[SessionResult]], stop: Stop, attend: Attend | None) -> SessionResult:
    """The result of `main`, which `stop` may end; `attend` runs alongside it. Raises `Interrupted` where it was ended before a chain
    could start."""
    result = None
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
    engines: Mapping[str, Engine], ready: Ready, observer: Observer, stop: Stop | None = None, opening: float | None = None
) -> SessionResult:
    """Solve on `engines` that are open already, and stay open; of their totals only what this run adds is recorded.

    `opening`: when their opening began, by `time.monotonic`; None: they were open before.
    """
    opened = await prepare(ready.checked.settings, engines, observer.tell)
    run = begin(ready, opened.facts, 0.0 if opening is None else time.monotonic() - opening)
    result = await execute(run, Here(opened), observer, stop or Stop())
    return structs.replace(result, notices=(*opened.notices, *filter(None, (shortfall(result.run), rejections(result.run)))))


class Here:
    """The `Site` of a run whose engines this process has."""

    def __init__(self, opened: OpenEngines) -> None:
        self._opened, self._before = opened, statistics(opened.engines)

    def work(self, run: Begun, rows: RowSink, clock: Clock) -> Chains:
        checked, state = run.ready.checked, run.ready.resume_state
        order = start_order(checked.options.order, checked.options.samples, state.is_over, checked.earlier_thoughts)
        feed = InputFeed(checked.problems.unchanged(), order, threads=not checked.virtual_time)
        return Chains(checked.settings, self._opened, feed, rows, clock, state)

    def spent(self) -> dict[str, EngineStatistics]:
        return {role: now.since(self._before[role]) for role, now in statistics(self._opened.engines).items()}

    def replicas(self) -> list[Replica]:
        return []

    def states(self) -> tuple[ReplicaState, ...]:
        return ()
