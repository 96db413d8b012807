"""Figures with their uncertainty: columns with one place a problem enter, values with 95 % intervals leave.

Differences and ratios take a percentile bootstrap over problems (Efron and Tibshirani 1993, chapter 13): samples of one
problem belong together, and of two runs over the same problems the same problems are drawn for both. Every statistic here
is one of sums over problems, so that a draw is a vector of weights. Seeded, so repeatable.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from msgspec import Struct

from pipeline.analysis.quality.samples import interval, wilson
from pipeline.analysis.time.timeline import Array

RESAMPLES = 2000
LEVEL = 0.95
MOST_WEIGHTS = 4_000_000
"""Weights held at once, 8 bytes each."""


class Estimate(Struct, frozen=True):
    """A figure and its interval; nulls where there is nothing to say."""

    value: float | None
    low: float | None = None
    high: float | None = None


NOTHING = Estimate(None)


def estimate(statistic: Callable[..., Array], *columns: Array) -> Estimate:
    """`statistic` of the sums of `columns` over the problems, and its interval over resampled problems.

    It gets the sums of all draws at once, as arrays, and may divide by zero: such draws say nothing.
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
    """The sum of `over` by the sum of `under`."""
    return estimate(np.divide, over, under)


def mean(values: Array) -> Estimate:
    """Over the problems."""
    return ratio(values, np.ones(len(values)))


def share(part: Array, whole: Array) -> Estimate:
    """The `ratio` of a count to one that holds it. At 0 and at 1 no draw says otherwise: there Wilson's interval over problems."""
    found = ratio(part, whole)
    if found.value not in (0.0, 1.0):
        return found
    bounds = wilson(found.value, int((whole > 0).sum()))
    return Estimate(found.value, bounds.low, bounds.high)


def difference(over: Array, under: Array, base_over: Array, base_under: Array) -> Estimate:
    """One ratio less another, over the same problems."""
    return estimate(lambda a, b, c, d: a / b - c / d, over, under, base_over, base_under)


def gain(part: Array, whole: Array, base_part: Array, base_whole: Array) -> Estimate:
    """The `difference` of two shares. Where all problems agree no draw says otherwise: there what Wilson leaves to none in so many."""
    found = difference(part, whole, base_part, base_whole)
    if found.value is None or found.low != found.high:
        return found
    room = wilson(0.0, len(part)).high
    return Estimate(found.value, max(-1.0, found.value - room), min(1.0, found.value + room))


def change(values: Array, base: Array) -> Estimate:
    """The sum of `values` by that of `base`, less one: -0.5 is half as much."""
    return estimate(lambda a, b: a / b - 1, values, base)


def outcomes(problem: Array, right: Array) -> Estimate:
    """The share of right outcomes, with the interval that summaries and reports say; `problem` names the cluster of each."""
    bounds = interval(problem, right)
    return NOTHING if bounds is None else Estimate(float(np.mean(right)), bounds.low, bounds.high)


def _draws(problems: int) -> Iterator[Array]:
    rows = max(1, min(RESAMPLES, MOST_WEIGHTS // problems))
    for start in range(0, RESAMPLES, rows):
        yield _weights(problems, start, min(rows, RESAMPLES - start))


@lru_cache(maxsize=2)
def _weights(problems: int, start: int, rows: int) -> Array:
    """How often each problem is in each of `rows` draws, the first of them number `start`."""
    drawn = np.random.default_rng((0, start)).integers(0, problems, (rows, problems))
    places = drawn + np.arange(rows)[:, None] * problems
    return np.bincount(places.ravel(), minlength=rows * problems).reshape(rows, problems).astype(float)
