"""Replicas on this machine, without a cluster: settings enter, a `Launcher` leaves.

Replicas whose engines compute are processes that divide the GPUs of the machine, or its cores. Those of simulated engines are tasks of this
event loop, so that all replicas are on one simulated clock: such a run says what so many machines would do.
"""

import pickle
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
from msgspec import Struct

from pipeline.cluster.fleet import Launcher, solve_on_replicas
from pipeline.cluster.messages import Orders, ReplicaLink, ReplicaReport, decoded
from pipeline.cluster.replica_process import receive, send
from pipeline.cluster.replica_worker import ReplicaWorker
from pipeline.engines.cores import ranges
from pipeline.errors import ReplicaLost, UsageError, reason
from pipeline.graph.spec import EngineSpec
from pipeline.session.loop import Stop
from pipeline.session.observer import Attend, Observer
from pipeline.session.prepare import Prepared, RunSettings
from pipeline.session.run import SessionResult
from pipeline.system.machine import Gpu, Machine, gpus, look
from pipeline.system.tasks import background_tasks
from pipeline.system.worker_process import Program, WorkerProcess

CLOSE_S = 20.0
"""Most seconds that a replica may take to close its engines once nobody asks it any more; then it is killed, and they end with it."""
EXIT_S = 0.5
"""How long a replica that closed its socket has to leave its exit status; then it is killed."""
FREED = 0.95
"""A replica is started again once this share of the memory that was free before is free again on its GPUs."""
ROOM_LOOKS, ROOM_AGAIN_S = 120, 0.5
"""How many times, and how many seconds apart, that memory is looked at."""


async def solve_on_this_machine(
    ready: Prepared, observer: Observer, stop: Stop | None = None, *, attend: Attend | None = None
) -> SessionResult:
    """Solve on replicas on this machine, as `pipeline.session.run.solve` does without. Raises `UsageError` where it has too few devices."""
    settings = ready.settings
    if settings.virtual_time:
        return await solve_on_replicas(task_launcher(settings), ready, observer, stop, attend=attend)
    if judges := settings.options.judges:
        what = f"the judge {judges[0]!r} is known to this process alone, and replicas are others"
        raise UsageError(f"--replicas {settings.options.replicas}: {what}; make it a plugin (guides/custom-judge in the documentation)")
    machine = await anyio.to_thread.run_sync(look)
    shares = divided(settings.plan.engines, machine, settings.options.replicas)
    observer.tell(f"{len(shares)} replicas: {', '.join(share.words for share in shares)}")
    return await solve_on_replicas(process_launcher(settings, shares), ready, observer, stop, attend=attend)


class DeviceShare(Struct, frozen=True, kw_only=True):
    """The devices of one replica."""

    gpus: tuple[Gpu, ...] = ()
    cores: tuple[int, ...] = ()
    """CPU cores by their numbers; empty: any."""

    @property
    def words(self) -> str:
        """The devices for a person, such as `GPU 2-3`; empty where its engines use none of this machine."""
        gpus = f"GPU {ranges([gpu.index for gpu in self.gpus])}" if self.gpus else ""
        cores = f"CPU core{'s' * (len(self.cores) > 1)} {ranges(self.cores)}" if self.cores else ""
        return gpus or cores


def divided(specs: Mapping[str, EngineSpec], machine: Machine, count: int) -> list[DeviceShare]:
    """The devices of `machine` for `count` replicas with engines of these `specs`: as many GPUs each as these name or, without any, equal
    parts of the cores. The engines file counts from 0 in each share. Raises `UsageError` where there are too few."""
    each = max((gpu + 1 for spec in specs.values() for gpu in spec.gpus), default=0) if machine.gpus else 0
    there, cores = len(machine.gpus), machine.cores
    if each * count > there:
        needs = f"each replica needs {each} GPU{'s' * (each > 1)}, but this machine has {there}"
        raise UsageError(f"--replicas {count}: {needs}; use at most {there // each}, or other devices in the engines file")
    if each:
        return [DeviceShare(gpus=machine.gpus[n * each : (n + 1) * each]) for n in range(count)]
    if len(cores) < count:
        raise UsageError(f"--replicas {count}: this machine has {len(cores)} CPU cores, not one for each replica; use at most {len(cores)}")
    return [DeviceShare(cores=cores[n * len(cores) // count : (n + 1) * len(cores) // count]) for n in range(count)]


def task_launcher(settings: RunSettings) -> Launcher:
    """Starts replicas as tasks of the running event loop."""

    @asynccontextmanager
    async def launch(number: int) -> AsyncIterator[ReplicaLink]:
        replica = ReplicaWorker(settings)
        async with background_tasks() as tasks:
            tasks.start_soon(replica.serve)
            yield TaskLink(replica)

    return launch


class TaskLink:
    """The `ReplicaLink` to a replica of this event loop."""

    node = address = devices = ""

    def __init__(self, replica: ReplicaWorker) -> None:
        self._replica = replica

    async def exchange(self, orders: Orders) -> ReplicaReport:
        return await self._replica.exchange(orders)


def process_launcher(settings: RunSettings, shares: Sequence[DeviceShare]) -> Launcher:
    """Starts replicas as processes with these devices."""
    started: set[int] = set()

    @asynccontextmanager
    async def launch(number: int) -> AsyncIterator[ReplicaLink]:
        share = shares[number]
        if number in started:
            await _wait_for_room(share)
        started.add(number)
        try:
            process = WorkerProcess(_program(share))
        except OSError as error:
            raise ReplicaLost(f"its process cannot be started: {reason(error)}") from error
        process.socket.setblocking(False)
        try:
            async with background_tasks() as tasks:
                tasks.start_soon(_read_stderr, process)
                link = ProcessLink(process, share.words)
                await link.send(settings)
                yield link
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(process.end)
            process.close_files()

    return launch


def _program(share: DeviceShare) -> Program:
    names = ",".join(gpu.cuda_name for gpu in share.gpus)
    environment = {"CUDA_VISIBLE_DEVICES": names, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if names else {}
    return Program(
        module="pipeline.cluster.replica_process",
        arguments=(",".join(map(str, share.cores)),),
        environment=environment,
        shutdown_s=CLOSE_S,
    )


async def _read_stderr(process: WorkerProcess) -> None:
    """Read what it writes, and keep the end of it, in which an error is that ends it."""
    while True:
        await anyio.wait_readable(process.stderr)
        if not process.read_stderr():
            return


async def _wait_for_room(share: DeviceShare) -> None:
    """Wait a while for the GPU memory of what a lost replica had started, which ends a moment after it."""
    for _ in range(ROOM_LOOKS):
        free = {gpu.index: gpu.free_bytes or 0 for gpu in await anyio.to_thread.run_sync(gpus)}
        if all(gpu.free_bytes is None or free.get(gpu.index, 0) >= FREED * gpu.free_bytes for gpu in share.gpus):
            return
        await anyio.sleep(ROOM_AGAIN_S)


class ProcessLink:
    """The `ReplicaLink` to a process of this machine."""

    node = address = ""

    def __init__(self, process: WorkerProcess, devices: str) -> None:
        self._process, self.devices = process, devices

    async def send(self, message: RunSettings | Orders) -> None:
        """Raises `ReplicaLost`."""
        try:
            await send(self._process.socket, pickle.dumps(message))
        except OSError as error:
            raise await self._loss() from error

    async def exchange(self, orders: Orders) -> ReplicaReport:
        await self.send(orders)
        try:
            return decoded(await receive(self._process.socket))
        except (EOFError, OSError) as error:
            raise await self._loss() from error

    async def _loss(self) -> ReplicaLost:
        await anyio.to_thread.run_sync(self._process.wait, EXIT_S)
        return ReplicaLost(f"its process ended: {self._process.exit_reason()}")
