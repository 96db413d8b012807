"""Counts of steps: the steps table of a run folder enters, counts by length, step number and verdict leave.

The table is streamed; of a verified step a few numbers are held, never a text.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.capabilities import read_steps
from pipeline.analysis.quality.verdict_values import Grades, Scores, VerdictValues
from pipeline.analysis.time.timeline import Array

COLUMNS = (
    "chain_id",
    "step_index",
    "decision",
    "score_value",
    "threshold",
    "num_candidates",
    "chosen_candidate",
    "step_token_ids",
    "candidate_tokens",
)


class StepCounts(Struct, frozen=True, kw_only=True):
    """Counts of the steps of a run, by length, step number and verdict."""

    lengths: dict[str, Array]
    """By kind of text, an array with the number of texts of each length in tokens (its index). A kind is the decision about a committed
    step, or, of candidates, `rejected` where all of the step were, and `not_chosen` where another one was accepted."""
    verified: Array
    """Number of verified steps, by step number."""
    accepted: Array
    """Number of them that were accepted, by step number."""
    scores: dict[str, Scores]
    """Values of verdicts by kind of verifying stage; see `VerdictValues.scores`."""


def count_steps(run: Path, grades: Grades) -> StepCounts:
    """Count the steps of the run folder `run`; raises `InputError`. Chains that are not in `grades` count in no share of right ones."""
    counting = _Counting()
    for batch in read_steps(run, COLUMNS):
        counting.add(batch)
    return StepCounts(
        lengths=dict(sorted(counting.lengths.items())),
        verified=counting.verified,
        accepted=counting.accepted,
        scores=counting.values.scores(run, grades),
    )


class _Counting:
    """Adds up batches of steps."""

    def __init__(self) -> None:
        self.lengths: dict[str, Array] = {}
        self.verified, self.accepted = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.values = VerdictValues()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the steps of `batch`, which has `COLUMNS` and those of `capabilities.read_steps`."""
        decision, step = batch.column("decision"), batch.column("step_index").to_numpy()
        accepted = _equal(decision, "accepted")
        for name in pc.unique(decision).to_pylist():
            self._add_lengths(name, pc.list_value_length(batch.column("step_token_ids")).to_numpy()[_equal(decision, name)])
        self._add_candidates(batch, accepted)
        verified = batch.column("verify_kind").is_valid().to_numpy(zero_copy_only=False)
        self.verified = _sum(self.verified, np.bincount(step[verified]))
        self.accepted = _sum(self.accepted, np.bincount(step[verified & accepted], minlength=len(self.verified)))
        self.values.add(batch, accepted)

    def _add_lengths(self, kind: str, tokens: Array) -> None:
        if len(tokens):
            self.lengths[kind] = _sum(self.lengths.get(kind, np.zeros(0, np.int64)), np.bincount(tokens))

    def _add_candidates(self, batch: pa.RecordBatch, accepted: Array) -> None:
        """Add the lengths of the candidates that were not committed."""
        lists = batch.column("candidate_tokens")
        counts = lists.value_lengths().to_numpy()
        owner = np.repeat(np.arange(batch.num_rows), counts)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        tokens = lists.flatten().to_numpy()
        chosen = batch.column("chosen_candidate").fill_null(-1).to_numpy()
        self._add_lengths("rejected", tokens[~accepted[owner]])
        self._add_lengths("not_chosen", tokens[accepted[owner] & (place != chosen[owner])])


def _equal(column: pa.Array, value: str) -> Array:
    return np.asarray(pc.equal(column, value).fill_null(False).to_numpy(zero_copy_only=False))


def _sum(so_far: Array, more: Array) -> Array:
    """The sum of two arrays whose lengths may differ; missing elements count as 0."""
    longest = max(len(so_far), len(more))
    return np.asarray(np.pad(so_far, (0, longest - len(so_far))) + np.pad(more, (0, longest - len(more))))
