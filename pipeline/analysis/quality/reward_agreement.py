"""Whether a verifier's scores agree with a process reward model: speculated steps with both enter, means in bins of the reward leave.

SpecReason figure 7: every step that was drafted and scored counts, whether it was accepted or not. Verdicts whose options are the
candidates themselves are no scores of one step and are left out.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.capabilities import SCALE_COLUMNS, read_steps
from pipeline.analysis.order import spearman
from pipeline.analysis.quality.estimates import NOTHING, Estimate, ratio
from pipeline.analysis.time.timeline import Array, Names
from pipeline.store.read import read_batches

BINS = 10
"""Bins of the reward, each 0.1 wide (SpecReason 5.4)."""
COLUMNS = ("chain_id", "step_index", "score_value", "chosen_candidate", "num_candidates", *SCALE_COLUMNS)
REWARD_COLUMNS = ("chain_id", "step_index", "candidate_index", "reward")


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
    """Scores against rewards; the tuples have an element for each of the `BINS`: rewards from 0.1 i up to but not with 0.1 (i + 1)."""

    scale: str
    """What the score means."""
    steps: int
    """Speculated steps with both."""
    counts: tuple[int, ...]
    means: tuple[Estimate, ...]
    """Mean score of the bin's steps, its interval over problems."""
    rank_correlation: float | None
    """Spearman's, -1 to 1, over all steps; null where all scores or all rewards are equal."""


def read_scored_steps(run: Path, place: Mapping[str, int]) -> ScoredSteps | None:
    """The scored steps of the run folder `run`; None where no step has both a score and a reward. Raises `InputError`.

    `place` is the index of each chain's problem; chains that are not in it do not count.
    """
    chains, scales = Names(), Names()
    known, rewards = _rewards(run, chains)
    if not len(known):
        return None
    parts = [_scored(batch, chains, scales) for batch in read_steps(run, COLUMNS)]
    key, score = (np.concatenate(column) for column in zip(*parts, strict=True)) if parts else (np.empty(0, np.int64), np.empty(0))
    found = np.minimum(np.searchsorted(known, key), len(known) - 1)
    problem = np.array([place.get(name, -1) for name in chains], int)[key >> 36]
    both = (known[found] == key) & (problem >= 0)
    if not both.any():
        return None
    return ScoredSteps(", ".join(sorted(scales)), problem[both], score[both], rewards[found[both]])


def agreement(steps: ScoredSteps) -> Agreement | None:
    """The figures of `steps`; None where their scores are on several scales."""
    if "," in steps.scale:
        return None
    bins = np.clip(np.floor(steps.reward * BINS + 1e-9), 0, BINS - 1).astype(int)
    return Agreement(
        scale=steps.scale,
        steps=len(bins),
        counts=tuple(np.bincount(bins, minlength=BINS).tolist()),
        means=tuple(_mean(steps.problem[bins == each], steps.score[bins == each]) for each in range(BINS)),
        rank_correlation=spearman(steps.score, steps.reward),
    )


def _mean(problem: Array, score: Array) -> Estimate:
    if not len(score):
        return NOTHING
    place = np.unique(problem, return_inverse=True)[1]
    return ratio(np.bincount(place, score), np.bincount(place))


def _rewards(run: Path, chains: Names) -> tuple[Array, Array]:
    """Sorted keys of the candidates that have a reward, and their rewards."""
    parts = [(np.empty(0, np.int64), np.empty(0))]
    for batch in read_batches(run, "rewards", REWARD_COLUMNS):
        batch = batch.filter(pc.and_(batch.column("reward").is_valid(), batch.column("candidate_index").is_valid()))
        parts.append((_keys(batch, chains, batch.column("candidate_index")), batch.column("reward").to_numpy(zero_copy_only=False)))
    key, reward = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(key, kind="stable")
    return key[order], reward[order].astype(float)


def _scored(steps: pa.RecordBatch, chains: Names, scales: Names) -> tuple[Array, Array]:
    """Keys of the candidates in `steps` that a verifier scored by themselves, and their scores.

    That is the accepted candidate, or of a rejected step the only one.
    """
    only = pc.equal(steps.column("num_candidates"), 1)
    judged = pc.and_(steps.column("score_value").is_valid(), pc.invert(pc.fill_null(steps.column("score_of_candidates"), True)))
    steps = steps.filter(pc.and_(judged, pc.or_(steps.column("chosen_candidate").is_valid(), only)))
    scales.codes(steps.column("score_scale"))
    candidate = pc.fill_null(steps.column("chosen_candidate"), 0)
    return _keys(steps, chains, candidate), steps.column("score_value").to_numpy(zero_copy_only=False).astype(float)


def _keys(rows: pa.RecordBatch, chains: Names, candidate: pa.Array) -> Array:
    """A number for each triple of chain, step (below 2^28) and candidate (below 2^8)."""
    chain = np.asarray(chains.codes(rows.column("chain_id"))).astype(np.int64)
    step = rows.column("step_index").to_numpy(zero_copy_only=False).astype(np.int64)
    return np.asarray(chain << 36 | step << 8 | candidate.to_numpy(zero_copy_only=False).astype(np.int64))
