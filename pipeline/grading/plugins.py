"""Graders by name: the built-in kinds, those that other packages announce as entry points, and those that this process has registered.

    [project.entry-points."pipeline.graders"]
    sql = "my_package:same_rows"

    @pipeline.grader
    def same_rows(answer: str, reference: str) -> bool:
        return sorted(run(answer)) == sorted(run(reference))

An announced grader is imported when it is first asked for and called in the grader's worker process, under its limits of time and memory; a
registered one is called in this process, without limits, and possibly in several threads at once. A built-in name cannot be replaced.
"""

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from inspect import signature
from typing import Any, TypeVar

from pipeline.errors import UsageError

GRADERS = "pipeline.graders"
"""The group of entry points."""
GRADER_KINDS = ("math", "numeric", "letter")
"""The built-in ways of grading: by mathematical equivalence, as the one number in an answer, or by the letter chosen."""
Same = Callable[[str, str], Any]
"""True if an answer means the same as a reference; errors that it raises are recorded as the chain's `grading_error`."""
G = TypeVar("G", bound=Same)

graders: dict[str, Same] = {}
"""The graders that this process has registered, by name."""


def grader(function: G, *, name: str = "") -> G:
    """Make a function a grader, known in this process by `name`, else by its own name; returns the function.

    It is called as `function(answer, reference)` with the texts of both and returns whether they mean the same. Problems ask for it by name
    in their column `grader`. Raises `UsageError` for another object, and where a built-in grader has that name.
    """
    name = name or getattr(function, "__name__", "grader")
    if name in GRADER_KINDS:
        raise UsageError(f"{name!r} is a built-in grader; choose another name")
    try:
        signature(function).bind("answer", "reference")
    except TypeError as error:
        raise UsageError(f"grader {name!r}: expected a function of (answer, reference): {error}") from None
    graders[name] = function
    grader_names.cache_clear()
    return function


def name_of(function: Same) -> str:
    """The name of a grader, which is registered by its own name where it is not yet."""
    if function not in graders.values():
        grader(function)
    return next(name for name, each in graders.items() if each == function)


def graders_of_this_process() -> frozenset[str]:
    """The names of the graders that this process has registered and no package announces."""
    return frozenset(graders) - entry_points(group=GRADERS).names if graders else frozenset()


@cache
def grader_names() -> tuple[str, ...]:
    """The names of all graders, built-in, announced and registered; none is imported for it."""
    return tuple(sorted({*GRADER_KINDS, *entry_points(group=GRADERS).names, *graders}))


@cache
def load_grader(name: str) -> Same:
    """The announced grader of this name; raises `KeyError` if there is none, or the error of its import."""
    found: Same = entry_points(group=GRADERS)[name].load()
    return found
