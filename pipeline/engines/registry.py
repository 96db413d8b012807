"""Which engine backends there are: the built-in ones and those of other packages. Loads a backend only when it is used."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from pipeline.engine import Backend, Engine
from pipeline.errors import GraphError
from pipeline.graph.spec import EngineSpec, OpenAISpec, ReplaySpec, SimSpec, TorchSpec, VllmSpec

BUILT_IN: dict[type[EngineSpec], str] = {
    TorchSpec: "pipeline.engines.torch.backend",
    VllmSpec: "pipeline.engines.vllm.backend",
    OpenAISpec: "pipeline.engines.openai.backend",
    SimSpec: "pipeline.engines.sim.engine",
    ReplaySpec: "pipeline.engines.replay.engine",
}


@cache
def plugged_backends() -> tuple[Backend, ...]:
    """Backends that other packages bring."""
    return tuple(point.load() for point in entry_points(group="pipeline.engines"))


def engine_specs() -> dict[str, type[EngineSpec]]:
    """What an engines file may say under `backend`."""
    specs = [*(backend.spec for backend in plugged_backends()), *BUILT_IN]
    return {str(spec.__struct_config__.tag): spec for spec in specs}


def backend_of(spec: EngineSpec) -> Backend:
    """The backend that opens engines of this spec."""
    module = BUILT_IN.get(type(spec))
    if module is None:
        return next(backend for backend in plugged_backends() if backend.spec is type(spec))
    backend: Backend = import_module(module).BACKEND
    return backend


@asynccontextmanager
async def open_engines(specs: Mapping[str, EngineSpec]) -> AsyncIterator[dict[str, Engine]]:
    """All roles of `specs`, opened backend by backend; closed in reverse order."""
    groups: dict[str, dict[str, EngineSpec]] = {}
    for role, spec in specs.items():
        groups.setdefault(str(spec.__struct_config__.tag), {})[role] = spec
    async with AsyncExitStack() as stack:
        engines: dict[str, Engine] = {}
        for group in groups.values():
            backend = backend_of(next(iter(group.values())))
            engines.update(await stack.enter_async_context(backend.open(group)))
        yield {role: engines[role] for role in specs}


def cautions(specs: Mapping[str, EngineSpec]) -> list[str]:
    """What someone should know before these engines start: whose code they will run."""
    trusting = [(role, getattr(spec, "model", role)) for role, spec in specs.items() if getattr(spec, "trust_remote_code", False)]
    return [f"warning: engine {role!r}: trust_remote_code is on, code that comes with {model!r} will run" for role, model in trusting]


def virtual_time(specs: Mapping[str, EngineSpec], where: str) -> bool:
    """Do these engines live on a simulated clock? Some of each kind is a `GraphError`."""
    virtual = {role: backend_of(spec).virtual_time for role, spec in specs.items()}
    if len(set(virtual.values())) > 1:
        simulated = ", ".join(role for role, value in virtual.items() if value)
        raise GraphError(where, f"{simulated} run on simulated time and the other engines do not; simulate all of them or none")
    return all(virtual.values())
