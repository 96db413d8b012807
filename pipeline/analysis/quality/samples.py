"""Statistics of several samples of every problem: verdicts and answers of chains enter, shares with their uncertainty leave.

Samples of one problem are not independent of each other, so intervals take problems as clusters. Only graded chains count; a
problem without any is left out.
"""

import math
from typing import Literal

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.quality.votes import Sample, majority
from pipeline.grading.grader import Grader
from pipeline.store.query import Query

Z_95 = 1.959963984540054
"""95 % of a normal distribution lie within this many standard deviations."""
OUTCOMES = "SELECT count(*) AS samples, count(*) FILTER (counted) AS right FROM chains WHERE counted IS NOT NULL GROUP BY input_row"
VOTES = """
SELECT list({'correct': counted, 'answer': answer} ORDER BY sample_index) FROM chains WHERE counted IS NOT NULL GROUP BY input_row
"""


class Interval(Struct, frozen=True):
    """A 95 % confidence interval of a share, 0 to 1."""

    low: float
    high: float
    method: Literal["wilson", "clusters"]
    """`wilson`: with one sample a problem, or where all outcomes agree. `clusters`: with several samples, problems as clusters."""


class SampleStatistics(Struct, frozen=True, kw_only=True):
    """Statistics of the graded chains of a run."""

    interval: Interval | None
    """95 % interval of the share of right chains; null without graded chains."""
    samples: int
    """The most graded chains of one problem."""
    pass_at: dict[int, float]
    """pass@k by k; see `pass_at`."""
    majority: float | None
    """Share of problems whose most frequent answer is right, 0 to 1; null with one sample a problem."""


def sample_statistics(db: Query) -> SampleStatistics:
    """Statistics of the graded chains of a run."""
    found = db.columns(OUTCOMES)
    samples, right = found["samples"], found["right"]
    if not len(samples):
        return SampleStatistics(interval=None, samples=0, pass_at={}, majority=None)
    most, majority_right = int(samples.max()), None
    if most > 1:
        problems = ([Sample(**each) for each in row] for (row,) in db.stream(VOTES))
        with Grader() as grader:  # starts no process but for answers that are close to a tie and written differently
            majority_right = majority(problems, lambda a, b: grader.grade("math", a, b).correct is True)
    return SampleStatistics(
        interval=interval_of(samples, right), samples=most, pass_at=pass_at(samples, right.astype(np.int64)), majority=majority_right
    )


def interval(problem: Array, correct: Array) -> Interval | None:
    """The 95 % interval of the share of right samples; `problem` is the cluster of each. None without samples.

    With one sample a problem outcomes are independent, and Wilson's score interval (Wilson 1927) holds also for few problems
    and for shares near 0 and 1. With several, the normal interval over the cluster-robust standard error (Liang and Zeger
    1986; for evaluations Miller 2024, "Adding Error Bars to Evals", arXiv:2411.00640, section 2.2), with the correction
    for few clusters: se = sqrt(G / (G - 1) * sum_g (sum_i (x_gi - mean))^2) / n, over G problems and n samples. With equally
    many samples a problem that is the standard deviation of the problems' means over sqrt(G). Where all samples agree, or
    there is but one problem, it would be 0 or unknown: then Wilson's, as if every problem had been tried once.
    """
    if not len(correct):
        return None
    clusters = np.unique(problem, return_inverse=True)[1]
    return interval_of(np.bincount(clusters), np.bincount(clusters, correct))


def interval_of(samples: Array, right: Array) -> Interval:
    """`interval`, given how many samples each problem has (at least one) and how many of them are right."""
    problems, total = len(samples), int(samples.sum())
    mean = float(right.sum()) / total
    if problems in (1, total) or mean in (0.0, 1.0):
        return wilson(mean, problems)
    sums = right - mean * samples
    half = Z_95 * math.sqrt(problems / (problems - 1) * float(sums @ sums)) / total
    return Interval(max(0.0, mean - half), min(1.0, mean + half), "clusters")


def wilson(share: float, trials: int) -> Interval:
    """Wilson's score interval of a `share` of independent trials."""
    z2 = Z_95 * Z_95
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
    return Interval(max(0.0, middle - half), min(1.0, middle + half), "wilson")


def pass_at(samples: Array, right: Array) -> dict[int, float]:
    """pass@k for k = 1, 2, 4, ... up to the most samples of a problem: the chance that one of k samples is right.

    `samples` are the numbers of samples of the problems, `right` those of right ones. The unbiased estimator of Chen et al. 2021
    ("Evaluating Large Language Models Trained on Code", equation 1): 1 - C(n - c, k) / C(n, k) with c of n samples right, averaged over
    the problems that have k samples.
    """
    most = int(samples.max(initial=0))
    outcomes, alike = np.unique(samples * (most + 1) + right, return_inverse=True)  # few, of however many problems
    found = {}
    for k in (2**power for power in range(most.bit_length())):
        chances = np.array([_any_of(k, *divmod(outcome, most + 1)) for outcome in outcomes.tolist()])
        found[k] = float(np.mean(chances[alike[samples >= k]]))
    return found


def _any_of(k: int, samples: int, right: int) -> float:
    """The chance that one of `k` of the `samples`, drawn without replacement, is among the `right` ones; 0 of fewer than `k`."""
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k) if k <= samples else 0.0
