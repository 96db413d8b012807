"""Opens and closes the engines of a plan together, whatever backends they have."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from pipeline.engine import Backend, Engine
from pipeline.errors import GraphError
from pipeline.graph.plugins import engine_backend
from pipeline.graph.spec import EngineSpec


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


def gpus(specs: Mapping[str, EngineSpec]) -> int:
    """How many GPUs a machine must have for all engines of these specs to find their own; see `Backend.gpus`."""
    return max((backend.gpus(group) for backend, group in by_backend(specs) if backend.gpus is not None), default=0)


def virtual_time(specs: Mapping[str, EngineSpec], where: str) -> bool:
    """True if these engines compute on a simulated clock; raises `GraphError` at `where` if some do and others do not."""
    virtual = {role: backend_of(spec).virtual_time for role, spec in specs.items()}
    if len(set(virtual.values())) > 1:
        simulated = ", ".join(role for role, value in virtual.items() if value)
        raise GraphError(where, f"{simulated} run on simulated time and the other engines do not; simulate all of them or none")
    return all(virtual.values())
