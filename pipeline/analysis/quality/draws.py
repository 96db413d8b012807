"""How often each problem is in each draw of the bootstrap: numbers of problems and of draws enter, counts leave.

Random numbers are outputs of splitmix64 (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators"), which are
functions of a state and of their place, so that any draws can be worked out by themselves. Output d from state 0 is the state of draw d.
Each of its outputs is two problems: its lower half, then its upper half, times the number of problems over 2**32.

The draws of many problems are counted by numba, which takes a second to load; those of few by numpy, which counts the same.
"""

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import numpy as np

from pipeline.analysis.arrays import Array

COMPILED_FROM = 50_000
"""Problems from which on numba spares more than the second that it takes, in the few tables that a comparison draws 2,000 times."""
AT_ONCE = 65_536
"""Problems that numpy draws at once, which stay in the processor's cache."""
U64 = np.uint64
STEP, FIRST, SECOND = U64(0x9E3779B97F4A7C15), U64(0xBF58476D1CE4E5B9), U64(0x94D049BB133111EB)
LOWER = U64(0xFFFFFFFF)
Counter: TypeAlias = Callable[[Array, int], Array]
"""The states of draws and the number of problems enter; how often each problem is drawn, by draw and problem, leaves, a byte each.

A byte is enough: of n problems none is drawn more than n times, and the chance that one is more than 255 times is below 1 / 255!."""


def counts(problems: int, start: int, draws: int) -> Array:
    """How often each of the problems is in each of so many draws from number `start` on, by draw and problem."""
    counter = compiled() if problems >= COMPILED_FROM else plain
    return counter(_mixed(np.arange(start + 1, start + draws + 1, dtype=U64) * STEP), problems)


def plain(states: Array, problems: int) -> Array:
    """A `Counter` in numpy."""
    steps = np.arange(1, (problems + 1) // 2 + 1, dtype=U64) * STEP
    rows = max(1, AT_ONCE // problems)
    found = np.empty((len(states), problems), np.uint8)
    for place in range(0, len(states), rows):
        outputs = _mixed(states[place : place + rows, None] + steps)
        drawn = outputs.astype("<u8", copy=False).view("<u4")[:, :problems].astype(U64)
        drawn *= U64(problems)
        drawn >>= U64(32)
        drawn += np.arange(len(drawn), dtype=U64)[:, None] * U64(problems)
        counted = np.bincount(drawn.ravel().view(np.int64), minlength=drawn.size)
        found[place : place + rows] = counted.reshape(drawn.shape)
    return found


@cache
def compiled() -> Counter:
    """A `Counter` in machine code, which is kept beside this file or in the user's cache folder, whichever can be written."""
    from numba import njit

    try:
        found: Counter = njit(nogil=True, cache=True)(_count)
    except RuntimeError:  # neither can be
        found = njit(nogil=True)(_count)
    return found


def _count(states: Array, problems: int) -> Array:
    """As `plain`, but for numba."""
    found = np.zeros((len(states), problems), np.uint8)
    for draw in range(len(states)):
        row, state = found[draw], states[draw]
        for place in range(0, problems, 2):
            state += STEP
            output = (state ^ (state >> U64(30))) * FIRST
            output = (output ^ (output >> U64(27))) * SECOND
            output ^= output >> U64(31)
            row[(output & LOWER) * U64(problems) >> U64(32)] += 1
            if place + 1 < problems:
                row[(output >> U64(32)) * U64(problems) >> U64(32)] += 1
    return found


def _mixed(states: Array) -> Array:
    """The outputs of splitmix64 from these states, in their place."""
    states ^= states >> U64(30)
    states *= FIRST
    states ^= states >> U64(27)
    states *= SECOND
    states ^= states >> U64(31)
    return states
