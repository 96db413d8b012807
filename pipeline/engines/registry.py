"""The engines of a plan together, whatever backends they have: opened and closed, and what is to be said of them before they start."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from pipeline.engine import Backend, Engine
from pipeline.engines.meter import LISTENER, NOBODY, Listener
from pipeline.graph.plugins import broken_plugins, engine_backend
from pipeline.graph.spec import EngineSpec
from pipeline.system.machine import cuda_mps, ranges


def by_backend(specs: Mapping[str, EngineSpec]) -> list[tuple[Backend, dict[str, EngineSpec]]]:
    """Each backend of `specs`, with its own of them."""
    groups: dict[str, dict[str, EngineSpec]] = {}
    for role, spec in specs.items():
        groups.setdefault(spec.backend, {})[role] = spec
    return [(engine_backend(name), group) for name, group in groups.items()]


@asynccontextmanager
async def open_engines(specs: Mapping[str, EngineSpec], listener: Listener = NOBODY) -> AsyncIterator[dict[str, Engine]]:
    """Open an engine for each role of `specs`, backend by backend, and close them in reverse order; `listener` hears of them until their
    ends. Raises what the backends raise."""
    async with AsyncExitStack() as stack:
        engines: dict[str, Engine] = {}
        token = LISTENER.set(listener)
        try:
            for backend, group in by_backend(specs):
                engines.update(await stack.enter_async_context(backend.open(group)))
        finally:
            LISTENER.reset(token)
        yield {role: engines[role] for role in specs}


def notices(specs: Mapping[str, EngineSpec]) -> list[str]:
    """What a person should know before these engines start: plug-ins that cannot be loaded, foreign code, shared GPUs."""
    trusting = [(role, getattr(spec, "model", role)) for role, spec in specs.items() if getattr(spec, "trust_remote_code", False)]
    return [
        *(f"warning: {each}" for each in broken_plugins()),
        *(f"warning: engine {role!r}: trust_remote_code is on, so code that comes with {model!r} will run" for role, model in trusting),
        *taking_turns(specs),
    ]


def taking_turns(specs: Mapping[str, EngineSpec]) -> list[str]:
    """A sentence for each group of engines that share a GPU of this machine without CUDA MPS."""
    used: dict[tuple[str, ...], list[int]] = {}
    for gpu in sorted({gpu for spec in specs.values() for gpu in spec.gpus}):
        used.setdefault(tuple(role for role, spec in specs.items() if gpu in spec.gpus), []).append(gpu)
    shared = {roles: gpus for roles, gpus in used.items() if len(roles) > 1}
    if not shared or cuda_mps() is not False:
        return []
    why = "and take turns, because CUDA MPS is not running: documentation, concepts/scheduling-and-memory"
    return [f"{' and '.join(roles)} share GPU {ranges(gpus)} {why}" for roles, gpus in shared.items()]
