"""The main process's side of engine `vllm`: vLLM's `AsyncLLM` in a worker process for each role.

vLLM's front end (token handling, output processing, its logs, environment variables and signal handlers) stays out of
the main process, which would share one interpreter lock with it. Nothing of vLLM is imported here;
`pipeline.engines.vllm.worker` is the other side.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from msgspec import structs

from pipeline.engine import Backend
from pipeline.engines.cores import CoreRequest, share_cores
from pipeline.engines.models import load_tokenizer, resolve, tokenizer_of
from pipeline.engines.process.engine import WorkerEngine, open_workers
from pipeline.engines.process.wire import Setup
from pipeline.engines.startup import current_listener
from pipeline.engines.vllm.check import check, examine_vllm, vllm_available
from pipeline.engines.vllm.memory import build, devices_of, may_score, on_cpu, widened
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.system.machine import Machine, cores, look
from pipeline.system.worker_process import Program

_SHUTDOWN_S = 15.0
"""How long a worker may take to end: vLLM frees shared memory and its own processes when it shuts down."""


@asynccontextmanager
async def open_vllm(specs: Mapping[str, VllmSpec]) -> AsyncIterator[Mapping[str, WorkerEngine]]:
    """Open an engine for each role, one after the other where some share a GPU, because vLLM measures what is free.

    Raises `GraphError` before anything starts when the memory plan does not hold or vLLM is not here, or when a model
    cannot be loaded; `EngineDead` when a worker dies while loading.
    """
    machine = look()
    plan = check(specs, machine)
    on_cpu = build(machine) == "cpu"
    core_requests = {role: CoreRequest(spec.core, spec.threads, on_cpu) for role, spec in specs.items()}
    shares = share_cores(core_requests, cores())
    programs = {role: program(spec, shares[role] if on_cpu else None, machine) for role, spec in specs.items()}
    engines = {role: _engine(setup(role, spec, shares[role]), spec, programs[role]) for role, spec in specs.items()}
    async with open_workers(_queues(specs, engines, on_cpu)) as opened:
        for role, engine in engines.items():
            if not may_score(plan, role, engine.vocab_size, engine.max_model_len, engine.facts):
                engine.facts["cannot"] = (*engine.facts["cannot"], "scoring")  # type: ignore[misc]
        yield opened


def _engine(setup: Setup, spec: VllmSpec, program: Program) -> WorkerEngine:
    return WorkerEngine(setup, program, partial(load_tokenizer, setup.model, spec))


def _queues(specs: Mapping[str, VllmSpec], engines: Mapping[str, WorkerEngine], on_cpu: bool) -> list[list[WorkerEngine]]:
    """All engines in one queue where some of them share a GPU, else each in its own."""
    gpus = [] if on_cpu else [gpu for spec in specs.values() for gpu in set(devices_of(spec))]
    return [[*engines.values()]] if len(set(gpus)) < len(gpus) else [[engine] for engine in engines.values()]


def setup(role: str, spec: VllmSpec, cores: tuple[int, ...]) -> Setup:
    """The first message to the worker of `role`, with bundled models resolved to folders."""
    inner = spec.speculative_config
    if inner is not None and inner.model is not None:
        spec = structs.replace(spec, speculative_config=structs.replace(inner, model=resolve(role, inner.model)))
    return Setup.of(role, spec, resolve(role, spec.model), cores)


def program(spec: VllmSpec, cores: tuple[int, ...] | None, machine: Machine) -> Program:
    """The program of a worker and its environment; `cores` are the CPU cores to compute on (empty: any), None where it computes on GPUs."""
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if cores is None:
        names = {gpu.index: gpu.cuda_name for gpu in machine.gpus}
        if names:
            visible = ",".join(names[index] for index in devices_of(spec))
            environment |= {"CUDA_VISIBLE_DEVICES": visible, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    else:
        # `auto` would put every engine on the first core; `nobind` leaves it to the system.
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)) or "nobind", "OMP_NUM_THREADS": str(spec.threads)}
        if spec.enforce_eager is not False:
            environment["TORCHDYNAMO_DISABLE"] = "1"  # the first request would wait 20 s for a compilation
    return Program(
        module="pipeline.engines.vllm.worker",
        environment=environment,
        defaults={} if current_listener().verbose else {"VLLM_LOGGING_LEVEL": "WARNING"},
        shutdown_s=_SHUTDOWN_S,
    )


def gpus(specs: Mapping[str, VllmSpec]) -> int:
    return max((index + 1 for spec in specs.values() for index in devices_of(spec)), default=0)


def devices(specs: Mapping[str, VllmSpec], machine: Machine) -> dict[str, tuple[int, ...]]:
    return {role: () if on_cpu(machine) else devices_of(spec) for role, spec in specs.items()}


BACKEND = Backend(
    spec=VllmSpec,
    open=open_vllm,
    available=vllm_available,
    examine=examine_vllm,
    tokenizer=tokenizer_of,
    widened=widened,
    gpus=gpus,
    devices=devices,
)
