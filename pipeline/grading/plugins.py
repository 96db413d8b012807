"""Graders of other packages: the names that entry points of the group `pipeline.graders` announce, and the functions behind them.

    [project.entry-points."pipeline.graders"]
    sql = "my_package:same_rows"

A grader is a function `same(answer, reference) -> bool`. It is called in the grader's worker process, under its limits of time and memory.
"""

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import Any

GROUP = "pipeline.graders"
Same = Callable[[str, str], Any]
"""Whether an answer means the same as a reference; errors that it raises are recorded as the chain's `grading_error`."""


@cache
def grader_names() -> tuple[str, ...]:
    """The names of all announced graders; none of them is imported."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


@cache
def load_grader(name: str) -> Same:
    """The announced grader of this name; raises `KeyError` where there is none, and what its import raises."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    found: Same = points[name].load()
    return found
