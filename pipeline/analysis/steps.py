"""The steps of a run: their lengths, and how many were accepted by step number and by the verifier's value. A run enters, counts leave; a
few numbers of each step are held.
"""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from pipeline.analysis.time.work import Array
from pipeline.reasoning.chain import Scale
from pipeline.store.query import Query

STEP_SUMS = """
CREATE TEMP TABLE IF NOT EXISTS step_sums AS
SELECT decision, stage, verify_kind, step_tokens AS tokens, count(*) AS steps,
       sum(step_tokens) FILTER (chosen_candidate IS NOT NULL) AS kept_draft_tokens, count(*) FILTER (cut AND step_index > 0) AS cut_steps
FROM steps GROUP BY ALL
"""
"""Makes a table of the steps by their length, for all figures of lengths."""
LENGTHS = """
SELECT kind, tokens, sum(count)::BIGINT AS count FROM (
    SELECT decision AS kind, tokens, steps AS count FROM step_sums
    UNION ALL
    SELECT 'rejected', unnest(list_filter(candidate_tokens, lambda each, place: place - 1 IS DISTINCT FROM chosen_candidate)), 1 FROM steps)
GROUP BY ALL ORDER BY kind
"""
VERIFIED = """
SELECT step_index, count(*) AS verified, count(*) FILTER (decision = 'accepted') AS accepted
FROM steps WHERE verify_kind IS NOT NULL GROUP BY step_index
"""
KINDS = """
SELECT verify_kind AS kind, score_scale AS name, score_low AS low, score_high AS high, score_integers AS integers,
       CASE WHEN count(DISTINCT threshold) = 1 THEN min(threshold) END AS threshold
FROM steps WHERE verify_kind IS NOT NULL GROUP BY ALL ORDER BY min(start_unix_ns), kind, name
"""
VALUES = """
SELECT score_value AS value, decision = 'accepted' AS accepted
FROM steps WHERE verify_kind = $kind AND score_scale = $name AND score_integers = $integers
AND score_low IS NOT DISTINCT FROM $low::DOUBLE AND score_high IS NOT DISTINCT FROM $high::DOUBLE AND isfinite(score_value)
"""
LOW = 0.9
"""Below this probability of all valid options together, before renormalising, a verification is doubtful."""
BINS = 20
"""Number of bins of a scale, but for whole numbers, which have one each."""
OUTLIERS = 0.005
"""Share of the values that lie beyond the last edge at an open end; they count in the last bin."""


class Scores(Struct, frozen=True, kw_only=True):
    """The values of one kind of verdict, in bins; the sequences have one element for each bin."""

    scale: Scale
    """What the values mean."""
    edges: Array
    """Edges of the bins, one more than there are bins."""
    accepted: Array
    """Number of accepted steps."""
    rejected: Array
    """Number of rejected steps."""
    threshold: float | None
    """Null where it was not the same in all steps."""


class StepCounts(Struct, frozen=True, kw_only=True):
    """Counts of the steps of a run, by length, step number and verdict."""

    lengths: dict[str, Array]
    """By kind of text, an array with the number of texts of each length in tokens (its index). A kind is the decision about a committed
    step, or `rejected` for a candidate that was not committed."""
    verified: Array
    """Number of verified steps, by step number."""
    accepted: Array
    """Number of them that were accepted, by step number."""
    scores: dict[str, Scores]
    """Values of verdicts by kind of verifier, or by kind and scale where one kind has several scales."""


def count_steps(query: Query) -> StepCounts:
    """Count the steps of a run."""
    query.execute(STEP_SUMS)
    found, steps, all_kinds = query.columns(LENGTHS), query.columns(VERIFIED), query.arrow(KINDS).to_pylist()
    kinds = {kind: found["kind"] == kind for kind in dict.fromkeys(found["kind"].tolist())}
    several = {kind for kind, count in Counter(each["kind"] for each in all_kinds).items() if count > 1}
    return StepCounts(
        lengths={kind: _counts(found["tokens"][mine], found["count"][mine]) for kind, mine in kinds.items()},
        verified=_counts(steps["step_index"], steps["verified"]),
        accepted=_counts(steps["step_index"], steps["accepted"]),
        scores={
            f"{each['kind']}, {each['name']}" if each["kind"] in several else each["kind"]: _scores(query, **each) for each in all_kinds
        },
    )


def _counts(places: Array, counts: Array) -> Array:
    return np.bincount(places, counts).astype(int)


def _scores(query: Query, kind: str, threshold: float | None, **fields: Any) -> Scores:
    """The values on the scale with these `fields`; `threshold`: where that was the same in all steps."""
    scale, (values, accepted) = Scale(**fields), query.columns(VALUES, kind=kind, **fields).values()
    ends = np.quantile(values, (OUTLIERS, 1 - OUTLIERS)) if len(values) else (0.0, 0.0)
    low, high = sorted(float(found if end is None else end) for end, found in zip((scale.low, scale.high), ends, strict=True))
    if scale.integers:  # they stand in the middle of their bins
        first, last = math.floor(low), math.ceil(high)
        edges = first - 0.5 + np.arange((last - first) + 2)
    else:
        edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    counts = [
        np.histogram(np.clip(values[some], edges[0], edges[-1]), edges)[0] for some in (accepted.astype(bool), ~accepted.astype(bool))
    ]
    return Scores(scale=scale, edges=edges, accepted=counts[0], rejected=counts[1], threshold=threshold)


def scale_of(step: Mapping[str, Any]) -> Scale:
    """The scale of a step's verdict; `step` is a row of the steps table whose step was verified."""
    return Scale(step["score_scale"], step["score_low"], step["score_high"], step["score_integers"])
