"""Graders by name: functions that entry points of the group `pipeline.graders` announce, and those that this process has registered.

    [project.entry-points."pipeline.graders"]
    sql = "my_package:same_rows"

    @pipeline.grader
    def same_rows(answer: str, reference: str) -> bool:
        return sorted(run(answer)) == sorted(run(reference))

An announced grader is called in the grader's worker process, under its limits of time and memory; a registered one in this process,
without limits, and possibly in several threads at once.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from inspect import signature
from typing import Any, overload

from msgspec import Struct

from pipeline.errors import UsageError

GROUP = "pipeline.graders"
KINDS = ("math", "numeric", "letter")
"""The built-in ways of grading: by mathematical equivalence, as the one number in an answer, or by the letter chosen."""
Same = Callable[..., Any]
"""True if an answer means the same as a reference; errors that it raises are recorded as the chain's `grading_error`. One of this process
may have a third parameter: the problem, its whole row as a mapping."""
_registered: dict[str, Same] = {}
"""The graders that this process has registered, by name."""
_with_problem: set[str] = set()
"""Those of them that take the row of the problem, too."""


class FunctionGrader(Struct, frozen=True):
    """A function that grades answers, with the name by which problems ask for it."""

    name: str
    function: Same

    def __call__(self, answer: str, reference: str, *problem: Mapping[str, Any]) -> Any:
        """True if `answer` means the same as `reference`."""
        return self.function(answer, reference, *problem)


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
    if not isinstance(name, str):
        return grader(name.__name__)(name)

    def made(function: Same) -> FunctionGrader:
        found = FunctionGrader(name, function)
        register_grader(found)
        return found

    return made


def register_grader(given: Same | FunctionGrader) -> str:
    """Make a grader known in this process, a plain function by its own name; the name. Raises `UsageError` for what is none."""
    found = given if isinstance(given, FunctionGrader) else FunctionGrader(getattr(given, "__name__", "grader"), given)
    if found.name in KINDS:
        raise UsageError(f"{found.name!r} is a built-in grader; choose another name")
    try:
        signature(found.function).bind("answer", "reference")
        _with_problem.discard(found.name)
    except TypeError as error:
        try:
            signature(found.function).bind("answer", "reference", {})
        except TypeError:
            what = f"the grader {found.name!r} cannot be called as function(answer, reference), nor with the problem as a third argument"
            raise UsageError(f"{what}: {error}") from error
        _with_problem.add(found.name)
    _registered[found.name] = found.function
    grader_names.cache_clear()
    return found.name


def takes_problem(name: str | None) -> bool:
    """True if a grader of this process wants the row of the problem, too."""
    return name in _with_problem


def registered_grader(name: str) -> Same | None:
    """The grader that this process has registered under this name."""
    return _registered.get(name)


def graders_of_this_process() -> frozenset[str]:
    """The names of the graders that this process has registered and no package announces."""
    return frozenset(_registered) - {point.name for point in entry_points(group=GROUP)} if _registered else frozenset()


@cache
def grader_names() -> tuple[str, ...]:
    """The names of all announced and registered graders; none is imported for it."""
    return tuple(sorted({*_registered, *(point.name for point in entry_points(group=GROUP))}))


@cache
def load_grader(name: str) -> Same:
    """The announced grader of this name; raises `KeyError` where there is none, and what its import raises."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    found: Same = points[name].load()
    return found
