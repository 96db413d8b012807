"""Figures with their uncertainty: columns with one element for each problem enter, values with 95 % intervals leave.

A figure is a function of sums over problems. With its influence on the figure linearised, a problem is one independent term, however many
samples it has, and for two runs over the same problems what both share cancels out: the standard error is sqrt(n / (n - 1) * sum of squared
influences), over n problems (Särndal, Swensson and Wretman 1992, "Model Assisted Survey Sampling", section 5.5; as for accuracies in
`samples.interval`). Factors between runs have their interval on the logarithmic scale, so that a factor and its inverse say the same.
"""

import math

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.quality.samples import Z_95, interval, wilson


class Estimate(Struct, frozen=True):
    """A figure and the ends of its 95 % interval; nulls where there are no data, and no interval from a single problem."""

    value: float | None
    low: float | None = None
    high: float | None = None


NOTHING = Estimate(None)
"""The estimate without data."""


def ratio(over: Array, under: Array) -> Estimate:
    """The sum of `over` divided by the sum of `under`."""
    if not (whole := float(np.sum(under))):
        return NOTHING
    value = float(np.sum(over)) / whole
    return _around(value, (over - value * under) / whole)


def share(part: Array, whole: Array) -> Estimate:
    """The share of `part` in `whole`, both counts by problem; at 0 and at 1 with Wilson's interval, with problems as trials."""
    found = ratio(part, whole)
    if found.value not in (0.0, 1.0):
        return found
    bounds = wilson(found.value, int((whole > 0).sum()))
    return Estimate(found.value, bounds.low, bounds.high)


def gain(part: Array, whole: Array, base_part: Array, base_whole: Array) -> Estimate:
    """The share of `part` in `whole` minus the share of `base_part` in `base_whole`; counts by problem, over the same problems.

    Where no problem differs from the others, the interval reaches as far as Wilson's does for a share of 0 in that many problems.
    """
    if not whole.sum() or not base_whole.sum():
        return NOTHING
    ours, theirs = float(part.sum() / whole.sum()), float(base_part.sum() / base_whole.sum())
    influence = (part - ours * whole) / whole.sum() - (base_part - theirs * base_whole) / base_whole.sum()
    if influence.any():
        return _around(ours - theirs, influence)
    room = wilson(0.0, len(part)).high
    return Estimate(ours - theirs, max(-1.0, ours - theirs - room), min(1.0, ours - theirs + room))


def factor(*ratios: tuple[Array, Array]) -> Estimate:
    """The product of the ratios of sums, each of a column over another one; all over the same problems."""
    totals = [(float(over.sum()), float(under.sum())) for over, under in ratios]
    if not all(over > 0 and under > 0 for over, under in totals):
        return NOTHING
    value = math.prod(over / under for over, under in totals)
    terms = (over / above - under / below for (over, under), (above, below) in zip(ratios, totals, strict=True))
    of_log = _around(0.0, np.sum(list(terms), axis=0))
    return Estimate(value, *(None if end is None else value * math.exp(end) for end in (of_log.low, of_log.high)))


def outcomes(problem: Array, right: Array) -> Estimate:
    """The share of right outcomes, with the same interval as in summaries (`samples.interval`); `problem` is the cluster of each."""
    bounds = interval(problem, right)
    return NOTHING if bounds is None else Estimate(float(np.mean(right)), bounds.low, bounds.high)


def _around(value: float, influence: Array) -> Estimate:
    if (problems := len(influence)) < 2:
        return Estimate(value)
    half = Z_95 * math.sqrt(problems / (problems - 1) * float(influence @ influence))
    return Estimate(value, value - half, value + half)
