"""The loss of accuracy of one run against another over the same problems: differences enter, an interval leaves.

It is Tango's score interval (1998, "Equivalence test and confidence interval for the difference in proportions for the paired-sample
design"), which keeps its level where few answers differ. The percentile bootstrap does not: with 150 problems it finds a true loss of 3 %
to be smaller in up to 6 % of cases, where 2.5 % are stated.
"""

import math
from statistics import NormalDist

import numpy as np

from pipeline.analysis.arrays import Array
from pipeline.analysis.quality.estimates import LEVEL, NOTHING, Estimate


def normal_bound(tests: int = 1) -> float:
    """Standard deviations within which all of so many normal figures lie in 95 % of cases (Bonferroni)."""
    return NormalDist().inv_cdf(1 - (1 - LEVEL) / 2 / tests)


def loss(differences: Array, tests: int = 1) -> Estimate:
    """The mean of `differences`, one for each problem, -1 to 1, and an interval of which that many hold together in 95 % of cases.

    A problem with several samples counts by how far it was lost or won, as if it had been so in that share of cases: the interval is
    wider than it need be.
    """
    if not len(differences):
        return NOTHING
    lost, won = float(np.clip(differences, 0, None).sum()), float(np.clip(-differences, 0, None).sum())
    bound, problems = normal_bound(tests), len(differences)
    high, low = _upper(lost, won, problems, bound), -_upper(won, lost, problems, bound)
    return Estimate((lost - won) / problems, low, high)


def _upper(lost: float, won: float, problems: int, bound: float) -> float:
    """The greatest loss that these numbers of lost and won problems do not contradict."""
    low, high = (lost - won) / problems, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if _deviation(lost, won, problems, middle) > bound else (middle, high)
    return high


def _deviation(lost: float, won: float, problems: int, loss: float) -> float:
    """By how many standard deviations fewer were lost than a true loss of `loss` makes expect, at the likeliest share of won ones."""
    middle = -lost - won + (2 * problems - lost + won) * loss
    root = math.sqrt(max(0.0, middle * middle + 8 * problems * won * loss * (1 - loss)))
    share = (root - middle) / (4 * problems)
    variance = problems * (2 * share + loss * (1 - loss))
    fewer = problems * loss - lost + won
    return fewer / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, fewer)
