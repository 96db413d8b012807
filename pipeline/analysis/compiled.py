"""The only module that imports numba: plain Python functions over arrays enter, the same functions compiled leave.

A function is written once. Over a short trace it runs as plain Python, and numba is not even imported; over a long one it is
compiled. Compiled code is kept in numba's cache, next to the module or in the user's own cache folder; where neither can be
written it is compiled once in every process. Arguments must be arrays, numbers and plain tuples: numba's cache stores the names
of argument classes, so that renaming one of this package's classes would make an existing cache unreadable.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@cache
def compiled(function: Function, *called: Callable[..., Any]) -> Function:
    """A compiled version of `function`; it is compiled at its first call, together with `called`.

    `called` must name every function of this package that `function` calls, directly or not. It releases the GIL while it runs.
    """
    from numba import njit
    from numba.extending import register_jitable

    for each in called:
        register_jitable(each)
    try:
        return njit(function, cache=True, nogil=True)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder for the cache
        return njit(function, nogil=True)  # type: ignore[no-any-return]
