"""The worker of a shard, a process of this machine or an actor of a cluster: the run with the options of a shard enters, an ordinary run in
the shard's folder leaves.

Meanwhile the driver asks it for reports, until one says that the run is over.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial

import anyio.to_thread
from anyio.from_thread import start_blocking_portal
from msgspec import Struct

from pipeline.errors import PipelineError, ReplicaLost
from pipeline.run.loop import Stop, attended, loop_options, rare_collection
from pipeline.run.prepare import Prepared, prepare
from pipeline.run.run import Observer, solve
from pipeline.runtime.executor import Executor
from pipeline.runtime.progress import Progress
from pipeline.store.folder import is_held

CLOSE_S = 20.0
"""Seconds that a run has to end in once it is stopped; then its process is killed."""


class ShardReport(Struct, frozen=True, kw_only=True):
    """How the run of a shard is."""

    over: int | None
    """Chains that are over, earlier sessions included; None until the engines are open."""
    told: list[str]
    """Notices for the user since the report before."""
    ended: bool
    """Whether the run has ended."""
    error: PipelineError | None
    """What ended it early."""


class ShardWorker:
    """Carries out the run of a shard in a thread; `poll` may be called from any other."""

    def __init__(self, shard: Prepared) -> None:
        """`shard`: the whole run, with the options of the shard's run."""
        # Ray's policy brings uvloop, whose event loop neither tells when a timer is due nor starts processes from a thread.
        asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())
        self._stop, self._told, self._progress = Stop(), list[str](), list[Progress]()
        self._thread = start_blocking_portal("asyncio", loop_options(shard.record.virtual_time))
        self._portal = self._thread.__enter__()
        self._solved: Future[None] = self._portal.start_task_soon(self._solve, shard)

    def poll(self) -> ShardReport:
        """How the run is."""
        ended = self._solved.done()
        told, self._told = self._told, []
        over, error = self._progress[0].over if self._progress else None, self._solved.exception() if ended else None
        if not isinstance(error, PipelineError | None):
            error = ReplicaLost(f"{type(error).__name__}: {error}")
        return ShardReport(over=over, told=told, ended=ended, error=error)

    def close(self) -> None:
        """Stop the run, and wait until it has ended."""
        self._portal.call(self._stop.abort)
        wait([self._solved])
        self._thread.__exit__(None, None, None)

    async def _solve(self, shard: Prepared) -> None:
        options, virtual, until = shard.options, shard.record.virtual_time, time.monotonic() + CLOSE_S
        assert options.output is not None
        while is_held(options.output) and time.monotonic() < until:  # by the worker before this one, in real time
            await anyio.to_thread.run_sync(time.sleep, 0.1)
        observer = Observer(watch=self._watch, tell=lambda sentence: self._told.append(sentence))
        starts = shard.starts_unix_ns
        with rare_collection(), prepare(options, shard.plan, shard.problems, virtual=virtual, starts_unix_ns=starts) as run:
            result = None if run.nothing_to_do else await attended(partial(solve, run, observer), None, self._stop)
        if result is not None and result.error is not None and result.run.status == "failed":
            raise result.error

    @contextmanager
    def _watch(self, run: Prepared, work: Executor) -> Iterator[None]:
        self._progress = [work.progress]
        yield
