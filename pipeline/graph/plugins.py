"""Kinds of stages, backends of engines and graders by name: the built-in ones, those that other packages announce as entry points, and the
judges and graders that this process has registered.

    [project.entry-points."pipeline.graders"]
    sql = "my_package:same_rows"

    @pipeline.grader
    def same_rows(answer: str, reference: str) -> bool:
        return sorted(run(answer)) == sorted(run(reference))

Each is imported when it is first asked for: nothing below this module knows a stage or an engine, and a run loads only the engines that it
uses. A built-in name cannot be replaced. An announced grader is called in the grader's worker process, under its limits of time and memory;
a registered one in this process, without limits, and possibly in several threads at once.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from inspect import signature
from typing import Any, overload

from msgspec import Struct

from pipeline.errors import GraphError, UsageError, reason
from pipeline.graph.spec import EngineSpec, RepeatSpec, StageSpec, TrialSpec

_STAGES = ("generate", "draft", "gate", "choose", "score", "reward", "vote", "answer")
STAGE_KINDS = {kind: f"pipeline.stages.{kind}:KIND" for kind in _STAGES} | {
    "likelihood": "pipeline.stages.score:LIKELIHOOD",
    "trial": "pipeline.stages.answer:TRIAL",
}
ENGINE_SPECS = {
    "torch": "pipeline.engines.torch.spec:TorchSpec",
    "vllm": "pipeline.engines.vllm.spec:VllmSpec",
    "openai": "pipeline.engines.openai.spec:OpenAISpec",
    "sim": "pipeline.engines.sim.spec:SimSpec",
}
_BACKEND_MODULES = {"torch": "torch.backend", "vllm": "vllm.backend", "openai": "openai.engine", "sim": "sim.engine"}
STAGES, ENGINES, GRADERS = "pipeline.stages", "pipeline.engines", "pipeline.graders"
"""The groups of entry points."""

GRADER_KINDS = ("math", "numeric", "letter")
"""The built-in ways of grading: by mathematical equivalence, as the one number in an answer, or by the letter chosen."""
Same = Callable[..., Any]
"""True if an answer means the same as a reference; errors that it raises are recorded as the chain's `grading_error`. One of this process
may have a third parameter: the problem, its whole row as a mapping."""


class FunctionGrader(Struct, frozen=True):
    """A function that grades answers, with the name by which problems ask for it."""

    name: str
    function: Same
    takes_problem: bool = False
    """Whether it takes the row of the problem, too."""

    def __call__(self, answer: str, reference: str, *problem: Mapping[str, Any]) -> Any:
        """True if `answer` means the same as `reference`."""
        return self.function(answer, reference, *problem)


_registered: dict[str, Any] = {}
"""The stage kinds that this process has registered, by name."""
_graders: dict[str, FunctionGrader] = {}
"""The graders that this process has registered, by name."""


def register(kind: Any) -> None:
    """Make a `StageKind` known in this process, in place of an earlier one; raises `UsageError` where a built-in one has its name."""
    name = kind.name
    if name in STAGE_KINDS or name == _tag(RepeatSpec):
        raise UsageError(f"{name!r} is a built-in kind of stage; choose another name")
    _registered[name] = kind
    stage_kinds.cache_clear()


def registered_alone() -> frozenset[str]:
    """The names of the stage kinds that this process has registered and no package announces."""
    return frozenset(_registered) - {kind.name for kind in _entries(STAGES)[0]}


@cache
def stage_kinds() -> dict[str, Any]:
    """Every known `pipeline.stages.base.StageKind`, by the word that names it under `kind`."""
    found = [*_entries(STAGES)[0], *_registered.values(), *(_load(reference) for reference in STAGE_KINDS.values())]
    return {kind.name: kind for kind in found}


def stage_specs() -> dict[str, type[StageSpec]]:
    """The spec of every stage that a graph file may hold, by the word that names it under `kind`; `repeat` is among them."""
    return {"repeat": RepeatSpec, **{tag: kind.spec for tag, kind in stage_kinds().items() if kind.spec is not TrialSpec}}


@cache
def engine_specs() -> dict[str, type[EngineSpec]]:
    """The spec of every engine that an engines file may hold, by the word that names it under `backend`."""
    announced = (backend.spec for backend in _entries(ENGINES)[0])
    return {_tag(spec): spec for spec in (*announced, *(_load(reference) for reference in ENGINE_SPECS.values()))}


@cache
def engine_backend(name: str) -> Any:
    """The `pipeline.engine.Backend` called `name`, which must be a key of `engine_specs()`."""
    if name in _BACKEND_MODULES:
        return _load(f"pipeline.engines.{_BACKEND_MODULES[name]}:BACKEND")
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


@overload
def grader(name: str) -> Callable[[Same], FunctionGrader]: ...
@overload
def grader(name: Same) -> FunctionGrader: ...
def grader(name: str | Same) -> FunctionGrader | Callable[[Same], FunctionGrader]:
    """Make a function a grader, known in this process by `name`, or by its own name where it is decorated without one.

    The function is called as `function(answer, reference)` with the texts of both, or where it has a third parameter with the problem's row
    too, and returns whether they mean the same. Problems ask for it by name in their column `grader`. Raises `UsageError` where a built-in
    grader has that name.
    """
    if isinstance(name, str):
        return lambda function: register_grader(FunctionGrader(name, function))
    return register_grader(name)


def register_grader(given: Same | FunctionGrader) -> FunctionGrader:
    """Make a grader known in this process, a plain function by its own name; raises `UsageError` for what is none."""
    found = given if isinstance(given, FunctionGrader) else FunctionGrader(getattr(given, "__name__", "grader"), given)
    if found.name in GRADER_KINDS:
        raise UsageError(f"{found.name!r} is a built-in grader; choose another name")
    plain = _takes(found.function, "answer", "reference")
    if not plain and not _takes(found.function, "answer", "reference", {}):
        what = "cannot be called as function(answer, reference), nor with the problem as a third argument"
        raise UsageError(f"the grader {found.name!r} {what}")
    _graders[found.name] = FunctionGrader(found.name, found.function, takes_problem=not plain)
    grader_names.cache_clear()
    return _graders[found.name]


def _takes(function: Same, *arguments: object) -> bool:
    try:
        signature(function).bind(*arguments)
    except TypeError:
        return False
    return True


def registered_grader(name: str | None) -> FunctionGrader | None:
    """The grader that this process has registered under this name."""
    return _graders.get(name or "")


def takes_problem(name: str | None) -> bool:
    """True if a grader of this process wants the row of the problem, too."""
    return (found := registered_grader(name)) is not None and found.takes_problem


def graders_of_this_process() -> frozenset[str]:
    """The names of the graders that this process has registered and no package announces."""
    return frozenset(_graders) - entry_points(group=GRADERS).names if _graders else frozenset()


@cache
def grader_names() -> tuple[str, ...]:
    """The names of all announced and registered graders; none is imported for it."""
    return tuple(sorted(entry_points(group=GRADERS).names | _graders.keys()))


@cache
def load_grader(name: str) -> Same:
    """The announced grader of this name; raises `KeyError` where there is none, and what its import raises."""
    found: Same = entry_points(group=GRADERS)[name].load()
    return found
