"""Figures with their uncertainty: columns with one element for each problem enter, values with 95 % intervals leave.

Differences and ratios use a percentile bootstrap over problems (Efron and Tibshirani 1993, chapter 13): samples of one
problem are drawn together, and for two runs over the same problems the same problems are drawn. Every statistic here
is a function of sums over problems, so that a draw is a vector of weights. The draws (`draws`) are always the same ones.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import TypeAlias, Union

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.quality.draws import counts
from pipeline.analysis.quality.samples import interval, wilson

RESAMPLES = 2000
"""Draws of the bootstrap."""
LEVEL = 0.95
"""Confidence level of the intervals."""
MAX_WEIGHTS = 4_000_000
"""Weights that a thread holds at once, 8 bytes each."""
MAX_THREADS = 2
"""Threads that draw at once."""


class Estimate(Struct, frozen=True):
    """A figure and the ends of its 95 % interval; nulls where there are no data."""

    value: float | None
    low: float | None = None
    high: float | None = None


NOTHING = Estimate(None)
"""The estimate without data."""


class Sums:
    """The sum of a column over the problems, and over resampled ones."""

    def __init__(self, values: Array, resampled: Callable[[], Array]) -> None:
        self.values = values
        self._resampled = resampled

    @property
    def drawn(self) -> Array:
        """The sum in each draw."""
        return self._resampled()


Column: TypeAlias = Union[Array, Sums]  # noqa: UP007
"""A column with one element for each problem."""


def sums(columns: Mapping[str, Array]) -> dict[str, Sums]:
    """The sums of columns over the same problems; all of them are resampled together, when the first is asked for."""
    arrays = [np.asarray(column, float) for column in columns.values()]
    resampled = cache(lambda: _resample(np.column_stack(arrays)))

    def column(place: int) -> Callable[[], Array]:
        return lambda: resampled()[:, place]

    return {name: Sums(arrays[place], column(place)) for place, name in enumerate(columns)}


def estimate(statistic: Callable[..., Array], *columns: Column) -> Estimate:
    """`statistic` of the sums of `columns` over the problems, with its interval over resampled problems.

    `statistic` gets the sums of many draws at once, as one array for each column. It may divide by zero: such draws are left out.
    """
    found = [column for column in columns if isinstance(column, Sums)]
    if len(found) < len(columns):
        found = list(sums({str(place): values_of(column) for place, column in enumerate(columns)}).values())
    if not found or not len(found[0].values):
        return NOTHING
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(statistic(*(column.values.sum() for column in found)))
        if not np.isfinite(value):
            return NOTHING
        values = statistic(*(column.drawn for column in found))
    values = values[np.isfinite(values)]
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(values) else (value, value)
    return Estimate(value, float(low), float(high))


def values_of(column: Column) -> Array:
    """The column itself."""
    return column.values if isinstance(column, Sums) else column


def ratio(over: Column, under: Column) -> Estimate:
    """The sum of `over` divided by the sum of `under`."""
    return estimate(np.divide, over, under)


def mean(values: Array) -> Estimate:
    """The mean of `values` over the problems."""
    return ratio(values, np.ones(len(values)))


def share(part: Column, whole: Column) -> Estimate:
    """The share of `part` in `whole`, both counts by problem.

    At 0 and at 1 all draws of the bootstrap agree, so there it is Wilson's interval, with problems as trials.
    """
    found = ratio(part, whole)
    if found.value not in (0.0, 1.0):
        return found
    bounds = wilson(found.value, int((values_of(whole) > 0).sum()))
    return Estimate(found.value, bounds.low, bounds.high)


def difference(over: Column, under: Column, base_over: Column, base_under: Column) -> Estimate:
    """`over` divided by `under` less `base_over` divided by `base_under`, as ratios of sums over the same problems."""
    return estimate(lambda a, b, c, d: a / b - c / d, over, under, base_over, base_under)


def gain(part: Column, whole: Column, base_part: Column, base_whole: Column) -> Estimate:
    """The `difference` of two shares.

    Where all draws of the bootstrap agree, the interval reaches as far as Wilson's does for a share of 0 in that many problems.
    """
    found = difference(part, whole, base_part, base_whole)
    if found.value is None or found.low != found.high:
        return found
    room = wilson(0.0, len(values_of(part))).high
    return Estimate(found.value, max(-1.0, found.value - room), min(1.0, found.value + room))


def change(values: Column, base: Column) -> Estimate:
    """The sum of `values` divided by that of `base`, less one: -0.5 is half as much."""
    return estimate(lambda a, b: a / b - 1, values, base)


def outcomes(problem: Array, right: Array) -> Estimate:
    """The share of right outcomes, with the same interval as in summaries (`samples.interval`); `problem` is the cluster of each."""
    bounds = interval(problem, right)
    return NOTHING if bounds is None else Estimate(float(np.mean(right)), bounds.low, bounds.high)


def _resample(table: Array) -> Array:
    """The sums of the columns of `table` in each draw, by draw and column."""
    problems = len(table)
    rows = max(1, min(RESAMPLES, MAX_WEIGHTS // max(1, problems)))
    starts = range(0, RESAMPLES, rows)
    weights = _cached_weights if len(starts) == 1 else _weights
    if len(starts) > 1:
        weights(problems, 0, 1)  # whatever is compiled is compiled here, by one thread
    with ThreadPoolExecutor(min(MAX_THREADS, len(starts))) as pool:
        return np.concatenate(list(pool.map(lambda start: weights(problems, start, min(rows, RESAMPLES - start)) @ table, starts)))


def _weights(problems: int, start: int, rows: int) -> Array:
    return counts(problems, start, rows).astype(float)


_cached_weights = lru_cache(maxsize=2)(_weights)
