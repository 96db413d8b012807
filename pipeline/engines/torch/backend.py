"""The main process's side of engine `torch`: this package's continuous batching, in one worker process for each model.

Models and limits are checked here before a worker starts. Neither torch nor transformers is imported:
the main process shares the machine's cores with the engines. `pipeline.engines.torch.model` is the other side.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from pipeline.engine import Backend
from pipeline.engines.models import check_model, load_tokenizer, resolve, tokenizer_of
from pipeline.engines.process.engine import Worker, WorkerEngine, open_workers, share_cores
from pipeline.engines.process.wire import Setup
from pipeline.engines.torch.spec import TorchSpec
from pipeline.system.machine import cores
from pipeline.system.worker_process import Program


@asynccontextmanager
async def open_torch(specs: Mapping[str, TorchSpec]) -> AsyncIterator[Mapping[str, WorkerEngine]]:
    """Open an engine for each role, all at once.

    Raises `GraphError` when a model cannot be loaded here, `EngineDead` when a worker dies while loading.
    """
    for role, spec in specs.items():
        check_model(f"engine {role!r}", resolve(role, spec.model))
    shares = share_cores({role: spec for role, spec in specs.items() if not spec.device.startswith("cuda")}, cores())
    async with open_workers([[_worker(role, spec, shares.get(role, ()))] for role, spec in specs.items()]) as opened:
        yield opened


def _worker(role: str, spec: TorchSpec, cores: tuple[int, ...]) -> Worker:
    model = resolve(role, spec.model)
    # Memory that one iteration frees is kept for the next, not given back to the system: some percent faster on a CPU.
    keep_memory = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_TOP_PAD_": str(1 << 26)}
    program = Program(
        module="pipeline.engines.process.worker",
        arguments=("pipeline.engines.torch.model:load_model",),
        environment=keep_memory | {"OMP_NUM_THREADS": str(spec.threads)},
    )
    return Worker(Setup.of(role, spec, model, cores), program, partial(load_tokenizer, model, spec))


BACKEND = Backend(spec=TorchSpec, open=open_torch, tokenizer=tokenizer_of)
