"""Statistics of several samples of every problem: verdicts and answers of chains enter, shares with their uncertainty leave.

Samples of one problem are not independent of each other, so intervals take problems as clusters. Only graded chains count; a
problem without any is left out.
"""

import math
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.quality.votes import Sample, majority
from pipeline.grading.grader import Grader
from pipeline.store.read import read_batches

Z_95 = 1.959963984540054
"""95 % of a normal distribution lie within this many standard deviations."""


class GradedChains(Struct, frozen=True):
    """Chains that count as right or wrong, failed ones included; the arrays have one element for each of them."""

    problem: Array
    """A number for each problem."""
    sample: Array
    """Its number among the samples of the problem."""
    correct: Array
    """1 right, 0 wrong."""
    row: Array
    """Index of its row in the chains table."""

    @classmethod
    def joined(cls, parts: "list[GradedChains]") -> "GradedChains":
        """The chains of all `parts`."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__struct_fields__))


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


def sample_statistics(run: Path, chains: GradedChains) -> SampleStatistics:
    """Statistics of the graded chains of the run folder `run`."""
    problem, correct = chains.problem, chains.correct
    if not len(problem):
        return SampleStatistics(interval=None, samples=0, pass_at={}, majority=None)
    if _all_differ(problem):  # which spares what groups a million chains by problem
        share = float(np.mean(correct))
        return SampleStatistics(interval=wilson(share, len(correct)), samples=1, pass_at={1: share}, majority=None)
    most = int(np.unique(problem, return_counts=True)[1].max())
    with Grader() as grader:  # starts no process but for answers that are close to a tie and written differently
        majority_right = majority(read_samples(run, chains), lambda a, b: grader.grade("math", a, b).correct is True)
    return SampleStatistics(interval=interval(problem, correct), samples=most, pass_at=pass_at(problem, correct), majority=majority_right)


def _all_differ(numbers: Array) -> bool:
    ordered = np.sort(numbers)
    return bool((ordered[1:] != ordered[:-1]).all())


def interval(problem: Array, correct: Array) -> Interval | None:
    """The 95 % interval of the share of right samples; `problem` is the cluster of each. None without samples.

    With one sample a problem outcomes are independent, and Wilson's score interval (Wilson 1927) holds also for few problems
    and for shares near 0 and 1. With several, the normal interval over the cluster-robust standard error (Liang and Zeger
    1986; for evaluations Miller 2024, "Adding Error Bars to Evals", arXiv:2411.00640, section 2.2), with the correction
    for few clusters: se = sqrt(G / (G - 1) * sum_g (sum_i (x_gi - mean))^2) / n, over G problems and n samples. With equally
    many samples a problem that is the standard deviation of the problems' means over sqrt(G). Where all samples agree, or
    there is but one problem, it would be 0 or unknown: then Wilson's, as if every problem had been tried once.
    """
    samples = len(correct)
    if not samples:
        return None
    clusters = np.unique(problem, return_inverse=True)[1]
    problems, mean = int(clusters.max()) + 1, float(np.mean(correct))
    if problems == samples or problems == 1 or mean in (0.0, 1.0):
        return wilson(mean, problems)
    sums = np.bincount(clusters, np.asarray(correct, float) - mean)
    half = Z_95 * math.sqrt(problems / (problems - 1) * float(sums @ sums)) / samples
    return Interval(max(0.0, mean - half), min(1.0, mean + half), "clusters")


def wilson(share: float, trials: int) -> Interval:
    """Wilson's score interval of a `share` of independent trials."""
    z2 = Z_95 * Z_95
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials))
    return Interval(max(0.0, middle - half), min(1.0, middle + half), "wilson")


def pass_at(problem: Array, correct: Array) -> dict[int, float]:
    """pass@k for k = 1, 2, 4, ... up to the most samples of a problem: the chance that one of k samples is right.

    The unbiased estimator of Chen et al. 2021 ("Evaluating Large Language Models Trained on Code", equation 1):
    1 - C(n - c, k) / C(n, k) with c of n samples right, averaged over the problems that have k samples.
    """
    clusters = np.unique(problem, return_inverse=True)[1] if len(problem) else np.empty(0, np.int64)
    samples, right = np.bincount(clusters), np.bincount(clusters, correct).astype(np.int64)
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


def read_samples(run: Path, chains: GradedChains) -> Iterator[list[Sample]]:
    """The graded chains of each problem, in order of their samples; held are those of problems of which not all are read."""
    order = np.argsort(chains.row)
    problem, row = np.unique(chains.problem, return_inverse=True)[1][order], chains.row[order]
    samples = np.bincount(problem)
    read: dict[int, list[tuple[int, Sample]]] = {}
    start = 0
    for batch in read_batches(run, "chains", ["answer"]):
        here = slice(*np.searchsorted(row, [start, start + batch.num_rows]))
        answers = batch.column("answer").take(pa.array(row[here].astype(np.int64) - start)).to_pylist()
        columns = (problem[here], *(column[order[here]] for column in (chains.sample, chains.correct)))
        for number, sample, correct, answer in zip(*(column.tolist() for column in columns), answers, strict=True):
            mine = read.setdefault(number, [])
            mine.append((sample, Sample(bool(correct), answer)))
            if len(mine) == samples[number]:
                yield [each for _, each in sorted(read.pop(number), key=itemgetter(0))]
        start += batch.num_rows
