"""Counts of steps: the steps table of a run folder enters, counts by length, step number and verdict leave."""

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.quality.verdict_values import Scores, read_scores
from pipeline.store.query import Query

LENGTHS = """
SELECT kind, tokens, count(*) AS count FROM (
    SELECT decision AS kind, len(step_token_ids) AS tokens FROM steps
    UNION ALL
    SELECT if(decision = 'accepted', 'not_chosen', 'rejected'), tokens FROM (
        SELECT decision, chosen_candidate, unnest(candidate_tokens) AS tokens, generate_subscripts(candidate_tokens, 1) - 1 AS place
        FROM steps)
    WHERE decision <> 'accepted' OR place IS DISTINCT FROM chosen_candidate)
GROUP BY ALL ORDER BY kind
"""
VERIFIED = """
SELECT step_index, count(*) AS verified, count(*) FILTER (decision = 'accepted') AS accepted
FROM steps WHERE verify_kind IS NOT NULL GROUP BY step_index
"""


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
    """Values of verdicts by kind of verifying stage; see `read_scores`."""


def count_steps(query: Query) -> StepCounts:
    """Count the steps of a run."""
    found, steps, scores = query.columns(LENGTHS), query.columns(VERIFIED), read_scores(query)
    kinds = {kind: found["kind"] == kind for kind in dict.fromkeys(found["kind"].tolist())}
    return StepCounts(
        lengths={kind: _counts(found["tokens"][mine], found["count"][mine]) for kind, mine in kinds.items()},
        verified=_counts(steps["step_index"], steps["verified"]),
        accepted=_counts(steps["step_index"], steps["accepted"]),
        scores=scores,
    )


def _counts(places: Array, counts: Array) -> Array:
    return np.bincount(places, counts).astype(int)
