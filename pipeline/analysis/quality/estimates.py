"""Figures with their uncertainty: columns with one element for each problem enter, values with 95 % intervals leave.

Differences and ratios use a percentile bootstrap over problems (Efron and Tibshirani 1993, chapter 13): samples of one
problem are drawn together, and for two runs over the same problems the same problems are drawn. Every statistic here
is a function of sums over problems, so that a draw is a vector of weights. The draws are seeded, so results repeat exactly.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.quality.samples import interval, wilson

RESAMPLES = 2000
"""Draws of the bootstrap."""
LEVEL = 0.95
"""Confidence level of the intervals."""
MAX_WEIGHTS = 4_000_000
"""Weights that are held at once, 8 bytes each."""


class Estimate(Struct, frozen=True):
    """A figure and the ends of its 95 % interval; nulls where there are no data."""

    value: float | None
    low: float | None = None
    high: float | None = None


NOTHING = Estimate(None)
"""The estimate without data."""


def estimate(statistic: Callable[..., Array], *columns: Array) -> Estimate:
    """`statistic` of the sums of `columns` over the problems, with its interval over resampled problems.

    `statistic` gets the sums of many draws at once, as one array for each column. It may divide by zero: such draws are left out.
    """
    table = np.column_stack(columns).astype(float) if columns else np.empty((0, 0))
    if not len(table):
        return NOTHING
    with np.errstate(invalid="ignore", divide="ignore"):
        value = float(statistic(*table.sum(axis=0)))
        if not np.isfinite(value):
            return NOTHING
        values = np.concatenate([statistic(*(weights @ table).T) for weights in _draws(len(table))])
    values = values[np.isfinite(values)]
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(values) else (value, value)
    return Estimate(value, float(low), float(high))


def ratio(over: Array, under: Array) -> Estimate:
    """The sum of `over` divided by the sum of `under`."""
    return estimate(np.divide, over, under)


def mean(values: Array) -> Estimate:
    """The mean of `values` over the problems."""
    return ratio(values, np.ones(len(values)))


def share(part: Array, whole: Array) -> Estimate:
    """The share of `part` in `whole`, both counts by problem.

    At 0 and at 1 all draws of the bootstrap agree, so there it is Wilson's interval, with problems as trials.
    """
    found = ratio(part, whole)
    if found.value not in (0.0, 1.0):
        return found
    bounds = wilson(found.value, int((whole > 0).sum()))
    return Estimate(found.value, bounds.low, bounds.high)


def difference(over: Array, under: Array, base_over: Array, base_under: Array) -> Estimate:
    """`over` divided by `under` less `base_over` divided by `base_under`, as ratios of sums over the same problems."""
    return estimate(lambda a, b, c, d: a / b - c / d, over, under, base_over, base_under)


def gain(part: Array, whole: Array, base_part: Array, base_whole: Array) -> Estimate:
    """The `difference` of two shares.

    Where all draws of the bootstrap agree, the interval reaches as far as Wilson's does for a share of 0 in that many problems.
    """
    found = difference(part, whole, base_part, base_whole)
    if found.value is None or found.low != found.high:
        return found
    room = wilson(0.0, len(part)).high
    return Estimate(found.value, max(-1.0, found.value - room), min(1.0, found.value + room))


def change(values: Array, base: Array) -> Estimate:
    """The sum of `values` divided by that of `base`, less one: -0.5 is half as much."""
    return estimate(lambda a, b: a / b - 1, values, base)


def outcomes(problem: Array, right: Array) -> Estimate:
    """The share of right outcomes, with the same interval as in summaries (`samples.interval`); `problem` is the cluster of each."""
    bounds = interval(problem, right)
    return NOTHING if bounds is None else Estimate(float(np.mean(right)), bounds.low, bounds.high)


def _draws(problems: int) -> Iterator[Array]:
    rows = max(1, min(RESAMPLES, MAX_WEIGHTS // problems))
    for start in range(0, RESAMPLES, rows):
        yield _weights(problems, start, min(rows, RESAMPLES - start))


@lru_cache(maxsize=2)
def _weights(problems: int, start: int, rows: int) -> Array:
    """How often each problem is in each of `rows` draws, the first of them number `start`."""
    drawn = np.random.default_rng((0, start)).integers(0, problems, (rows, problems))
    places = drawn + np.arange(rows)[:, None] * problems
    return np.bincount(places.ravel(), minlength=rows * problems).reshape(rows, problems).astype(float)
