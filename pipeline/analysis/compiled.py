"""The one door to numba: plain Python functions over arrays enter, the same ones compiled leave.

A function is written once. Over a short trace it runs as it stands, and numba is not even imported; over a long one it is
compiled. What is compiled is kept in numba's cache, beside the module or in the user's own cache folder; where neither can be
written it is compiled once in every process. What a function takes must be arrays, numbers and plain tuples: the cache names
classes of ours, and cannot be read any more by a version that has renamed one.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


@cache
def compiled(function: Function, *called: Callable[..., Any]) -> Function:
    """`function`, compiled at its first call, and with it the functions of ours that it calls, which all must be `called`.

    It lets go of the interpreter's lock while it runs.
    """
    from numba import njit
    from numba.extending import register_jitable

    for each in called:
        register_jitable(each)
    try:
        return njit(function, cache=True, nogil=True)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder for the cache
        return njit(function, nogil=True)  # type: ignore[no-any-return]
