"""The engines of a plan together, whatever backends they have: opened and closed, and what is to be said of them before they start.

Processes on one GPU take turns, unless the control daemon of CUDA MPS runs.
"""

import os
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from pipeline.engine import Backend, Engine
from pipeline.engines.cores import ranges
from pipeline.errors import GraphError
from pipeline.graph.plugins import broken_plugins, engine_backend
from pipeline.graph.spec import EngineSpec
from pipeline.system.machine import Machine, look

MPS_START, MPS_STOP = "nvidia-cuda-mps-control -d", "echo quit | nvidia-cuda-mps-control"
"""The commands that start the control daemon of CUDA MPS, and end it."""
MPS_MEASURED = (1.1, 1.3)
"""How much more two decoding processes did together under MPS than without it, on an H200: `bench/results/gpu-*.json`, CUDA graphs."""


def backend_of(spec: EngineSpec) -> Backend:
    """The backend that opens engines of this spec."""
    backend: Backend = engine_backend(spec.backend)
    return backend


def by_backend(specs: Mapping[str, EngineSpec]) -> list[tuple[Backend, dict[str, EngineSpec]]]:
    """Each backend of `specs`, with its own of them."""
    groups: dict[str, dict[str, EngineSpec]] = {}
    for role, spec in specs.items():
        groups.setdefault(spec.backend, {})[role] = spec
    return [(backend_of(next(iter(group.values()))), group) for group in groups.values()]


@asynccontextmanager
async def open_engines(specs: Mapping[str, EngineSpec]) -> AsyncIterator[dict[str, Engine]]:
    """Open an engine for each role of `specs`, backend by backend, and close them in reverse order; raises what the backends raise."""
    async with AsyncExitStack() as stack:
        engines: dict[str, Engine] = {}
        for backend, group in by_backend(specs):
            engines.update(await stack.enter_async_context(backend.open(group)))
        yield {role: engines[role] for role in specs}


def cautions(specs: Mapping[str, EngineSpec]) -> list[str]:
    """Warnings to show before these engines start: which of them will run code that comes with a model, and which has no key."""
    trusting = [(role, getattr(spec, "model", role)) for role, spec in specs.items() if getattr(spec, "trust_remote_code", False)]
    keys = [(role, name) for role, spec in specs.items() if (name := getattr(spec, "api_key_env", None)) and not os.environ.get(name)]
    return [
        *(f"warning: engine {role!r}: trust_remote_code is on, so code that comes with {model!r} will run" for role, model in trusting),
        *(f"warning: engine {role!r}: the environment variable {name} (api_key_env) is not set" for role, name in keys),
    ]


def notices(specs: Mapping[str, EngineSpec]) -> list[str]:
    """What a person should know before these engines start: plug-ins that cannot be loaded, foreign code, missing keys, shared GPUs."""
    may_share = len(specs) > 1 and any(backend.devices is not None for backend, _ in by_backend(specs))
    turns = taking_turns(specs, look()) if may_share else ()
    return [*(f"warning: {each}" for each in broken_plugins()), *cautions(specs), *turns]


def gpus(specs: Mapping[str, EngineSpec]) -> int:
    """How many GPUs a machine must have for all engines of these specs to find their own; see `Backend.gpus`."""
    return max((backend.gpus(group) for backend, group in by_backend(specs) if backend.gpus is not None), default=0)


def virtual_time(specs: Mapping[str, EngineSpec], where: str, rewards: Collection[str] = ()) -> bool:
    """True if these engines compute on a simulated clock; raises `GraphError` at `where` if some do and others do not.

    `rewards` are the roles of reward models, whose engines the engines file need not have.
    """
    virtual = {role: backend_of(spec).virtual_time for role, spec in specs.items()}
    if len(set(virtual.values())) > 1:
        simulated, real = ([role for role, value in virtual.items() if value is each] for each in (True, False))
        remedy = "simulate all of them or none"
        if set(real) <= set(rewards):
            remedy = f"simulate the reward model too: add {real[0]!r} to the engines file, as sim-4xh100-rsd has it"
        raise GraphError(where, f"engines on simulated time: {', '.join(simulated)}; on real time: {', '.join(real)}; {remedy}")
    return all(virtual.values())


def shared_gpus(specs: Mapping[str, EngineSpec], machine: Machine) -> dict[tuple[str, ...], list[int]]:
    """The GPUs that several engines share, by the roles of these engines."""
    found: dict[tuple[str, ...], list[int]] = {}
    used: dict[str, Collection[int]] = {}
    for backend, group in by_backend(specs):
        used |= {} if backend.devices is None else backend.devices(group, machine)
    for gpu in machine.gpus:
        roles = tuple(role for role in specs if gpu.index in used.get(role, ()))
        if len(roles) > 1:
            found.setdefault(roles, []).append(gpu.index)
    return found


def taking_turns(specs: Mapping[str, EngineSpec], machine: Machine) -> Iterator[str]:
    """A sentence for each group of engines that share a GPU without CUDA MPS, or where that is not known, with the commands that change
    it."""
    why = "and take turns, because CUDA MPS is not running" if machine.cuda_mps is False else "and take turns unless CUDA MPS is running"
    for shared in () if machine.cuda_mps else _shared(specs, machine):
        yield (
            f"{shared} {why}: while both compute, each takes about twice as long. To run them side by side, start it before the engines: "
            f"`{MPS_START}` (to stop it: `{MPS_STOP}`). With it two decoding processes did {MPS_MEASURED[0]} to {MPS_MEASURED[1]} times as "
            "much on an H200; documentation: concepts/scheduling-and-memory"
        )


def side_by_side(specs: Mapping[str, EngineSpec], machine: Machine) -> Iterator[str]:
    """A sentence for each group of engines that share a GPU under CUDA MPS."""
    for shared in _shared(specs, machine) if machine.cuda_mps else ():
        yield (
            f"{shared} under CUDA MPS: their kernels run side by side, and a small model's many short ones wait for a large model's long "
            "ones. Engines that are started with another CUDA_MPS_PIPE_DIRECTORY would take turns"
        )


def _shared(specs: Mapping[str, EngineSpec], machine: Machine) -> Iterator[str]:
    for roles, gpus in shared_gpus(specs, machine).items():
        yield f"{' and '.join(roles)} share GPU {ranges(gpus)}"
