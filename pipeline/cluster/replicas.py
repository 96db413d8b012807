"""A run on replicas: its problems are divided into shards, each an ordinary run in a process with its own devices, merged at the end.

    RUN/run.json        how the run as a whole is
    RUN/shards/3/       the run of the fourth shard, as `pipeline run --shard 3/8` would leave it

Whoever reads RUN meanwhile reads its shards (`store.store`). A worker that dies is started again and resumes its shard. There are as many
shards as replicas, because each waits for its own longest chain.
"""

import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from functools import partial, reduce
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path

import anyio
import anyio.to_thread
from msgspec import structs

from pipeline.cluster.merge import merged_sessions
from pipeline.cluster.worker import CLOSE_S, ShardReport, ShardWorker
from pipeline.engine import added
from pipeline.errors import EngineDead, Interrupted, OutOfMemory, PipelineError, ReplicaLost, RunError, UsageError, require
from pipeline.graph.spec import EngineSpec
from pipeline.options import RunOptions, shard_of
from pipeline.run.loop import Stop
from pipeline.run.prepare import Prepared, is_over
from pipeline.run.run import Observer, SessionResult, finish
from pipeline.runtime.clock import backoff_s
from pipeline.store.folder import FILE
from pipeline.store.resume import ResumeState
from pipeline.store.run_file import RunFile, Session
from pipeline.store.store import SHARDS, RunStore, shards_of
from pipeline.system.machine import Machine, look
from pipeline.system.worker_process import Program, WorkerProcess, end_with_parent, leave_signals

Poll = Callable[[], Awaitable[ShardReport]]
"""Asks a worker for its report. Raises `ReplicaLost`."""
Launch = Callable[[Prepared, int], AbstractAsyncContextManager[Poll]]
"""`launch(shard, place)` starts a worker on the devices of a place, and ends it with the context; raises `ReplicaLost`."""
POLL_S = 0.2
"""Seconds between two reports of a worker."""
MAX_DEATHS = 3
"""Workers of a shard that may die in a row without a chain that ended in between."""


def divided(specs: Mapping[str, EngineSpec], machine: Machine, count: int) -> list[Machine]:
    """The parts of `machine` for `count` replicas with engines of these `specs`: as many GPUs each as these name or, without any, equal
    shares of the cores. The engines file counts from 0 in each part. Raises `UsageError` where there are too few."""
    each = max((gpu + 1 for spec in specs.values() for gpu in spec.gpus), default=0) if machine.gpus else 0
    there, cores = len(machine.gpus), machine.cores
    if each * count > there:
        needs = f"each replica needs {each} GPU{'s' * (each > 1)}, but this machine has {there}"
        raise UsageError(f"--replicas {count}: {needs}; use at most {there // each}, or other devices in the engines file")
    if each:
        return [structs.replace(machine, gpus=machine.gpus[n * each : (n + 1) * each]) for n in range(count)]
    if len(cores) < count:
        raise UsageError(f"--replicas {count}: this machine has {len(cores)} CPU cores, not one for each replica; use at most {len(cores)}")
    return [structs.replace(machine, cores=cores[n * len(cores) // count : (n + 1) * len(cores) // count]) for n in range(count)]


async def solve_on_replicas(ready: Prepared, observer: Observer, stop: Stop | None = None) -> SessionResult:
    """Solve on replicas, of this machine or of the cluster that the options name, as `pipeline.run.run.solve` does without.

    Raises `UsageError` where there are too few devices or the cluster cannot be reached, `MissingExtra` for a cluster without Ray.
    """
    options = ready.options
    if options.cluster is not None:
        require(f"--cluster {options.cluster}", "ray", "ray")
        async with import_module("pipeline.cluster.ray").actors(ready.plan, options) as launch:
            return await Fleet(launch, ready, observer).run(options.replicas, stop or Stop())
    machine = await anyio.to_thread.run_sync(look)
    parts = [machine] * min(options.replicas, len(machine.cores))  # how many simulated ones compute at once makes no difference
    if not ready.record.virtual_time:
        parts = divided(ready.plan.engines, machine, options.replicas)
    return await Fleet(partial(worker_process, parts), ready, observer).run(len(parts), stop or Stop())


class Fleet:
    """The shards of a run while they are solved."""

    def __init__(self, launch: Launch, ready: Prepared, observer: Observer) -> None:
        assert ready.folder is not None
        self._launch, self._ready, self._observer, self._folder = launch, ready, observer, ready.folder
        self._shards = shards_of(self._folder) or _divided(self._folder, min(ready.options.replicas, ready.record.input.rows))
        self._left = [shard for shard in self._shards if not self._is_over(shard, ready.options.retry_failed)]
        self._over = {shard: RunFile.read(shard).totals.chains if (shard / FILE).exists() else 0 for shard in self._shards}
        self._starts_unix_ns = ready.begins_unix_ns()
        self._begun = False
        """Whether the engines of a shard are open."""
        self._error: PipelineError | None = None

    async def run(self, places: int, stop: Stop) -> SessionResult:
        """Solve all shards on the places, and merge them. Raises what keeps any chain from starting."""
        if self._left:
            with stop.guard():
                async with anyio.create_task_group() as tasks:
                    for place in range(places):
                        tasks.start_soon(self._work, place)
            if not self._begun:
                if not self._ready.record.sessions:
                    shutil.rmtree(self._folder / SHARDS)
                raise self._error or Interrupted()
        stop.over()
        return await anyio.to_thread.run_sync(self._finish)

    async def _work(self, place: int) -> None:
        """Solve one shard after the other on a place, until one is given up; the others are not even begun where none could be."""
        while self._left:
            shard = self._left.pop(0)
            try:
                await self._keep(shard, place)
            except PipelineError as error:
                self._error = self._error or error
                if self._begun:
                    self._observer.tell(f"replica {shard.name}: given up: {error}")
                elif isinstance(error, UsageError):
                    self._left.clear()
                return

    async def _keep(self, shard: Path, place: int) -> None:
        """Solve a shard; a worker that dies is started again, unless that happens again and again."""
        own = {"options": self._options(shard), "starts_unix_ns": self._starts_unix_ns, "resume_state": ResumeState()}
        job, deaths = structs.replace(self._ready, **own), 0
        while True:
            before = self._over[shard]
            try:
                async with self._launch(job, place) as poll:
                    return await self._attend(shard, poll)
            except (ReplicaLost, EngineDead, OutOfMemory) as loss:  # others would only come again
                deaths = 1 if self._over[shard] > before else deaths + 1
                if deaths == MAX_DEATHS:
                    raise RunError(f"replica {shard.name} died {MAX_DEATHS} times in a row: {loss}") from loss
                self._observer.tell(f"replica {shard.name}: lost, starting it again: {loss}")
            await anyio.sleep(backoff_s(f"replica {shard.name}", deaths - 1))

    async def _attend(self, shard: Path, poll: Poll) -> None:
        """Ask a worker until its run is over. Raises what ended it."""
        while True:
            report = await poll()
            for sentence in report.told:
                self._observer.tell(f"replica {shard.name}: {sentence}")
            if report.over is not None:
                self._count(shard, report.over)
            if report.error is not None:
                raise report.error
            if report.ended:
                return
            await anyio.sleep(POLL_S)

    def _count(self, shard: Path, over: int) -> None:
        """Tell every tenth of the chains that is over; the run has begun with the first shard whose engines are open."""
        record, before = self._ready.record, sum(self._over.values())
        self._over[shard] = over
        tenths = 10 * sum(self._over.values()) // record.input.chains
        if tenths > 10 * before // record.input.chains:
            self._observer.tell(f"{10 * tenths} % of {record.input.chains:,} chains are over")
        if not self._begun:
            sessions = (*record.sessions, Session(started_unix_ns=self._starts_unix_ns))
            structs.replace(record, engine_facts=RunFile.read(shard).engine_facts, sessions=sessions).write(self._folder)
            self._begun = True

    def _finish(self) -> SessionResult:
        """Merge the shards where all are finished, and write `run.json`."""
        ready, folder = self._ready, self._folder
        done = all(self._is_over(shard, False) for shard in self._shards)
        error = None if done else self._error or Interrupted()
        if done:
            RunStore(folder).merge(self._shards, folder.name, replicas=True)
        begun = [RunFile.read(shard) for shard in self._shards if (shard / FILE).exists()]
        record = structs.replace(ready.record, engine_facts=begun[0].engine_facts, sessions=merged_sessions(begun))
        record = finish(ready, record, error, reduce(added, [file.totals for file in begun]))
        if done:
            (folder / SHARDS).rename(folder / f".{SHARDS}")
            shutil.rmtree(folder / f".{SHARDS}")
        return SessionResult(folder=folder, run=record, error=error)

    def _is_over(self, shard: Path, retry_failed: bool) -> bool:
        return (shard / FILE).exists() and is_over(RunFile.read(shard), self._options(shard).part, retry_failed)

    def _options(self, shard: Path) -> RunOptions:
        """The options of a shard's own run."""
        given = self._ready.options
        outer = shard_of(given.shard or "0/1")  # the shards divide the problems of this one further
        return structs.replace(
            self._ready.record.options,
            output=shard.absolute(),
            shard=f"{outer.index + outer.count * int(shard.name)}/{outer.count * len(self._shards)}",
            resume=True,
            retry_failed=given.retry_failed,
            replicas=1,
            cluster=None,
            baseline=False,
        )


def _divided(folder: Path, count: int) -> list[Path]:
    """New folders of shards, all at once, so that their number is the number of shards."""
    draft = folder / f".{SHARDS}"
    shutil.rmtree(draft, ignore_errors=True)
    for index in range(count):
        (draft / str(index)).mkdir(parents=True)
    draft.rename(folder / SHARDS)
    return shards_of(folder)


@asynccontextmanager
async def worker_process(parts: Sequence[Machine], shard: Prepared, place: int) -> AsyncIterator[Poll]:
    """A worker in a process with the devices of its place among the `parts` of this machine."""
    names = ",".join(gpu.cuda_name for gpu in parts[place].gpus)
    program = Program(
        module="pipeline.cluster.replicas",
        arguments=(",".join(map(str, parts[place].cores)),),
        environment={"CUDA_VISIBLE_DEVICES": names, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if names else {},
        shutdown_s=CLOSE_S,
    )
    process = WorkerProcess(program)
    connection = Connection(os.dup(process.socket.fileno()))

    def exchange(message: Prepared | None = None) -> ShardReport:
        process.read_stderr()
        try:
            connection.send(message)
            report: ShardReport = connection.recv()
        except (EOFError, OSError) as error:
            process.wait(POLL_S)  # for its exit status
            raise ReplicaLost(f"its process ended: {process.exit_reason()}") from error
        return report

    try:
        await anyio.to_thread.run_sync(exchange, shard, abandon_on_cancel=True)
        yield partial(anyio.to_thread.run_sync, exchange, abandon_on_cancel=True)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(process.end)
        connection.close()
        process.close_files()


def main() -> None:
    """Be a worker in a process; the numbers of its cores are separated by commas."""
    leave_signals()
    connection = Connection(int(sys.argv[1]))
    end_with_parent(CLOSE_S)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, map(int, sys.argv[2].split(",")))  # before libraries count the cores
    with suppress(EOFError, OSError), closing(ShardWorker(connection.recv())) as worker:
        while True:
            connection.send(worker.poll())
            connection.recv()


if __name__ == "__main__":
    main()
