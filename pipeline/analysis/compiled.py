"""The one door to numba: plain Python functions over arrays enter, compiled ones leave.

What is compiled is kept in numba's cache, beside the module or in the user's own cache folder; where neither can be written it
is compiled once in every process. What a function takes must be arrays, numbers and plain tuples: the cache names classes of ours,
and cannot be read any more by a version that has renamed one.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """`function`, compiled at its first call; it lets go of the interpreter's lock while it runs."""
    try:
        return njit(function, cache=True, nogil=True)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder for the cache
        return njit(function, nogil=True)  # type: ignore[no-any-return]
