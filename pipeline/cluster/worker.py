"""The worker of a shard, a process of this machine or an actor of a cluster: a job enters, an ordinary run in the shard's folder leaves.

Meanwhile each order of the driver is answered by a report, until that says that the run is over.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from threading import Thread
from typing import Literal

from msgspec import Struct

from pipeline.errors import Interrupted, PipelineError, ReplicaLost
from pipeline.graph.plan import Plan
from pipeline.options import RunOptions
from pipeline.run.loop import Stop, attended, in_loop, rare_collection
from pipeline.run.observer import Observer, Work
from pipeline.run.prepare import Prepared, prepare
from pipeline.run.run import solve
from pipeline.store.folder import is_held
from pipeline.store.kept_problems import Problems
from pipeline.store.run_file import Totals

CLOSE_S = 20.0
"""Seconds that a run has to end in once it is stopped; then its process is killed."""
Order = Literal["", "drain", "abort"]


class ShardJob(Struct, frozen=True, kw_only=True):
    """A shard to solve."""

    options: RunOptions
    """Those of the shard's own run."""
    plan: Plan
    virtual_time: bool
    started_unix_ns: int
    """When the session starts on a simulated clock."""
    problems: Problems
    """Those of the whole run."""


class ShardReport(Struct, frozen=True, kw_only=True):
    """How the run of a shard is."""

    totals: Totals | None
    """Counts up to now, earlier sessions included; None until the engines are open."""
    live: int
    """Chains in flight."""
    told: list[str]
    """Notices for the user since the report before."""
    over: bool
    """The run has ended."""
    error: PipelineError | None
    """What ended it early, unless an order did."""


class ShardWorker:
    """Carries out the run of a shard in a thread; `poll` may be called from any other."""

    def __init__(self, job: ShardJob) -> None:
        self._job, self._stop, self._ordered = job, Stop(), ""
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._work: Work | None = None
        self._told: list[str] = []
        self._error: PipelineError | None = None
        self._thread = Thread(target=self._run, name="shard", daemon=True)
        self._thread.start()

    def poll(self, order: Order) -> ShardReport:
        """Pass on what the driver orders, and report."""
        over = not self._thread.is_alive()
        if order != self._ordered and not over:
            self._ordered = order
            self._loop.add_done_callback(partial(self._pass_on, order))
        told, self._told = self._told, []
        work, error = self._work, self._error if over else None
        totals, live = (None, 0) if work is None else (work.totals(), work.progress.live)
        return ShardReport(totals=totals, live=live, told=told, over=over, error=error)

    def abort(self) -> None:
        """Stop the run, and wait until it has ended."""
        self.poll("abort")
        self._thread.join()

    def _pass_on(self, order: Order, loop: Future[asyncio.AbstractEventLoop]) -> None:
        def stop() -> None:
            if order == "abort" or not self._stop.drain():
                self._stop.abort()

        with suppress(RuntimeError):  # the loop has ended
            loop.result().call_soon_threadsafe(stop)

    def _run(self) -> None:
        try:
            with rare_collection():
                self._carry_out(self._job)
        except Interrupted:
            pass  # as it was ordered
        except PipelineError as error:
            self._error = error
        except Exception as error:  # whatever it is, the driver hears it
            self._error = ReplicaLost(f"{type(error).__name__}: {error}")

    def _carry_out(self, job: ShardJob) -> None:
        assert job.options.output is not None
        until = time.monotonic() + CLOSE_S
        while is_held(job.options.output) and time.monotonic() < until:  # by the worker before this one
            time.sleep(0.1)
        observer = Observer(watch=self._watch, tell=lambda sentence: self._told.append(sentence))
        with prepare(job.options, job.plan, job.problems, virtual=job.virtual_time, starts_unix_ns=job.started_unix_ns) as run:

            async def in_this_loop() -> None:
                self._loop.set_result(asyncio.get_running_loop())
                result = await attended(partial(solve, run, observer), None, self._stop)
                self._error = result.error if result.run.status == "failed" else None

            if not run.nothing_to_do:
                in_loop(in_this_loop, virtual=run.virtual_time)

    @contextmanager
    def _watch(self, run: Prepared, work: Work) -> Iterator[None]:
        self._work = work
        yield
