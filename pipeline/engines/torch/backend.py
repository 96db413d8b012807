"""Engine `torch` as the main process knows it: this package's continuous-batching loop, one worker process a model.

Torch is not imported here: the main process shares the machine's cores with the engines. `torch_worker` is the other side.
"""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from pipeline.engine import Backend
from pipeline.engines.cores import Wish, share_cores
from pipeline.engines.models import resolve
from pipeline.engines.process.engine import WorkerEngine, open_workers
from pipeline.engines.process.process import Program
from pipeline.engines.process.wire import Setup
from pipeline.engines.torch.check import examine_torch, torch_available
from pipeline.engines.torch.spec import TorchSpec
from pipeline.errors import GraphError


@asynccontextmanager
async def open_torch(specs: Mapping[str, TorchSpec]) -> AsyncIterator[Mapping[str, WorkerEngine]]:
    """Open an engine for each role, all at once.

    Raises `GraphError` when a model cannot be loaded here, `EngineDead` when a worker dies while loading.
    """
    for role, spec in specs.items():
        _check_slots(role, spec)
    wishes = {role: Wish(spec.core, spec.threads, not spec.device.startswith("cuda")) for role, spec in specs.items()}
    cores = share_cores(wishes, sorted(os.sched_getaffinity(0)))
    engines = [WorkerEngine(Setup(role, spec, resolve(role, spec.model), cores[role]), _program(spec)) for role, spec in specs.items()]
    async with open_workers([[engine] for engine in engines]) as opened:
        yield opened


def _program(spec: TorchSpec) -> Program:
    # Memory that one iteration frees is kept for the next, not given back to the system: some percent faster on a CPU.
    keep_memory = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_TOP_PAD_": str(1 << 26)}
    return Program(
        module="pipeline.engines.torch.worker", environment={"OMP_NUM_THREADS": str(spec.threads)}, defaults=keep_memory, shutdown_s=0.0
    )


def _check_slots(role: str, spec: TorchSpec) -> None:
    if spec.kv_cache_slots is not None and spec.kv_cache_slots < spec.max_num_seqs:
        what = f"kv_cache_slots is {spec.kv_cache_slots}, but max_num_seqs = {spec.max_num_seqs} sequences need one each"
        raise GraphError(f"engine {role!r}", what)


BACKEND = Backend(spec=TorchSpec, open=open_torch, available=torch_available, examine=examine_torch)
