"""Graders by name: the built-in kinds, those that other packages announce as entry points, and those that this process has registered.

    [project.entry-points."pipeline.graders"]
    sql = "my_package:same_rows"

    @pipeline.grader
    def same_rows(answer: str, reference: str) -> bool:
        return sorted(run(answer)) == sorted(run(reference))

An announced grader is imported when it is first asked for and called in the grader's worker process, under its limits of time and memory; a
registered one is called in this process, without limits, and possibly in several threads at once. A built-in name cannot be replaced.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from inspect import signature
from typing import Any, overload

from msgspec import Struct

from pipeline.errors import UsageError

GRADERS = "pipeline.graders"
"""The group of entry points."""
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


_graders: dict[str, FunctionGrader] = {}
"""The graders that this process has registered, by name."""


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


def registered_grader(name: str) -> FunctionGrader | None:
    """The grader that this process has registered under this name."""
    return _graders.get(name)


def graders_of_this_process() -> frozenset[str]:
    """The names of the graders that this process has registered and no package announces."""
    return frozenset(_graders) - entry_points(group=GRADERS).names if _graders else frozenset()


@cache
def grader_names() -> tuple[str, ...]:
    """The names of all announced and registered graders; none is imported for it."""
    return tuple(sorted(entry_points(group=GRADERS).names | _graders.keys()))


@cache
def load_grader(name: str) -> Same:
    """The announced grader of this name; raises `KeyError` if there is none, or the error of its import."""
    found: Same = entry_points(group=GRADERS)[name].load()
    return found
