"""Kinds of stages and backends of engines by name: the built-in ones, those that other packages announce as entry points, and the judges
that this process has registered.

Each is imported when it is first asked for: nothing below this module knows a stage or an engine, and a run loads only the engines that it
uses. A built-in name cannot be replaced.
"""

from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from pipeline.errors import GraphError, UsageError, reason
from pipeline.graph.spec import EngineSpec, RepeatSpec, StageSpec, TrialSpec

_STAGES = {kind: f"{kind}:KIND" for kind in ("generate", "draft", "gate", "choose", "score", "reward", "vote", "answer")}
_STAGES["trial"] = "answer:TRIAL"
_SPECS = {"torch": "TorchSpec", "vllm": "VllmSpec", "openai": "OpenAISpec", "sim": "SimSpec"}
_MODULES = {"torch": "backend", "vllm": "backend", "openai": "engine", "sim": "engine"}
STAGES, ENGINES = "pipeline.stages", "pipeline.engines"
"""The groups of entry points."""

_registered: dict[str, Any] = {}
"""The stage kinds that this process has registered, by name."""


def register(kind: Any) -> None:
    """Register a `StageKind` in this process, where it replaces an earlier one; raises `UsageError` where a built-in one has its name."""
    name = kind.name
    if name in _STAGES or name == _tag(RepeatSpec):
        raise UsageError(f"{name!r} is a built-in kind of stage; choose another name")
    _registered[name] = kind
    stage_kinds.cache_clear()


def registered_alone() -> frozenset[str]:
    """The names of the stage kinds that this process has registered and no package announces."""
    return frozenset(_registered) - {kind.name for kind in _entries(STAGES)[0]}


@cache
def stage_kinds() -> dict[str, Any]:
    """Every known `pipeline.stages.base.StageKind`, by the word that names it under `kind`."""
    found = [*_entries(STAGES)[0], *_registered.values(), *(_load(f"pipeline.stages.{reference}") for reference in _STAGES.values())]
    return {kind.name: kind for kind in found}


def stage_specs() -> dict[str, type[StageSpec]]:
    """The spec of every stage that a graph file may hold, by the word that names it under `kind`; `repeat` is among them."""
    return {"repeat": RepeatSpec, **{tag: kind.spec for tag, kind in stage_kinds().items() if kind.spec is not TrialSpec}}


@cache
def engine_specs() -> dict[str, type[EngineSpec]]:
    """The spec of every engine that an engines file may hold, by the word that names it under `backend`."""
    built_in = {name: _load(f"pipeline.engines.{name}.spec:{spec}") for name, spec in _SPECS.items()}
    return {_tag(backend.spec): backend.spec for backend in _entries(ENGINES)[0]} | built_in


@cache
def engine_backend(name: str) -> Any:
    """The `pipeline.engine.Backend` called `name`, which must be a key of `engine_specs()`."""
    if name in _MODULES:
        return _load(f"pipeline.engines.{name}.{_MODULES[name]}:BACKEND")
    return next(backend for backend in _entries(ENGINES)[0] if _tag(backend.spec) == name)


def _tag(spec: type[StageSpec] | type[EngineSpec]) -> str:
    return str(spec.__struct_config__.tag)


def _load(reference: str) -> Any:
    """What `module:name` refers to."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def broken_plugins() -> tuple[str, ...]:
    """A sentence for each announced stage and engine that cannot be loaded; they are left out, and nothing else is broken by them."""
    return tuple(str(error) for group in (STAGES, ENGINES) for error in _entries(group)[1])


@cache
def _entries(group: str) -> tuple[tuple[Any, ...], tuple[GraphError, ...]]:
    """What other packages announce in this `group` of entry points that can be loaded, and the errors of what cannot."""
    found, broken = list[Any](), list[GraphError]()
    for point in entry_points(group=group):
        try:
            found.append(point.load())
        except Exception as error:
            package = f" of the installed package {point.dist.name}" if point.dist else ""
            where = f"entry point {point.name} = {point.value} ({point.group}){package} cannot be loaded"
            broken.append(GraphError(where, reason(error)))
    return tuple(found), tuple(broken)
