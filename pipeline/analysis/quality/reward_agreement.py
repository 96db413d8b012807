"""Whether a verifier's scores agree with a process reward model: speculated steps with both enter, means in bins of the reward leave.

SpecReason figure 7: every step that was drafted and scored counts, whether it was accepted or not. Verdicts whose options are the
candidates themselves are no scores of one step and are left out.
"""

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.quality.estimates import NOTHING, Estimate, ratio
from pipeline.store.query import Query

BINS = 10
"""Bins of the reward, each 0.1 wide (SpecReason 5.4)."""
SQL = """
SELECT score_scale AS scale, problem, score_value AS score, reward
FROM (SELECT *, coalesce(chosen_candidate, 0) AS candidate_index FROM steps) AS steps JOIN places USING (run, chain_id)
JOIN (SELECT run, chain_id, step_index, candidate_index, reward FROM rewards WHERE reward IS NOT NULL) AS scored
  USING (run, chain_id, step_index, candidate_index)
WHERE score_value IS NOT NULL AND NOT score_of_candidates AND (chosen_candidate IS NOT NULL OR num_candidates = 1)
ORDER BY problem, run, chain_id, step_index
"""
"""A verifier scores by itself the accepted candidate, or of a rejected step the only one."""


class ScoredSteps(Struct, frozen=True):
    """Speculated steps with a score and a reward, as columns of equal length."""

    scale: str
    """What the score means; scores on several scales are separated by commas, and cannot be compared."""
    problem: Array
    """Index of the step's problem."""
    score: Array
    reward: Array
    """0 to 1."""


class Agreement(Struct, frozen=True, kw_only=True):
    """Scores against rewards; `means` has an element for each of the `BINS`: rewards from 0.1 i up to but not with 0.1 (i + 1)."""

    steps: int
    """Speculated steps with both."""
    means: tuple[Estimate, ...]
    """Mean score of the bin's steps, its interval over problems."""
    rank_correlation: float | None
    """Spearman's, -1 to 1, over all steps; null where all scores or all rewards are equal."""


def read_scored_steps(db: Query) -> ScoredSteps | None:
    """The scored steps of the chains in `places`, see `by_problem.place_chains`; None where no step has both a score and a reward."""
    found = db.columns(SQL)
    if not len(found["score"]):
        return None
    return ScoredSteps(", ".join(sorted(set(found["scale"].tolist()))), found["problem"], found["score"], found["reward"])


def agreement(steps: ScoredSteps) -> Agreement | None:
    """The figures of `steps`; None where their scores are on several scales."""
    if "," in steps.scale:
        return None
    bins = np.clip(np.floor(steps.reward * BINS + 1e-9), 0, BINS - 1).astype(int)
    return Agreement(
        steps=len(bins),
        means=tuple(_mean(steps.problem[bins == each], steps.score[bins == each]) for each in range(BINS)),
        rank_correlation=spearman(steps.score, steps.reward),
    )


def _mean(problem: Array, score: Array) -> Estimate:
    if not len(score):
        return NOTHING
    place = np.unique(problem, return_inverse=True)[1]
    return ratio(np.bincount(place, score), np.bincount(place))


def spearman(one: Array, other: Array) -> float | None:
    """The correlation of the ranks of two columns, equal values having their mean rank; None where a column has but one value."""
    ranks = [_ranks(values) for values in (one, other)]
    if any(np.ptp(each) == 0 for each in ranks):
        return None
    # From 2.4 on, numpy types the result as a matrix or a number.
    return float(np.corrcoef(np.array(ranks))[0, 1])  # type: ignore[index, unused-ignore]


def _ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])
