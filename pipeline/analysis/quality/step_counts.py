"""Counts of steps: a run enters; counts by length, step number and the verifier's value leave. A few numbers of each step are held."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct, structs

from pipeline.analysis.arrays import Array
from pipeline.reasoning.chain import Scale
from pipeline.store.query import Query

STEP_SUMS = """
CREATE TEMP TABLE IF NOT EXISTS step_sums AS
SELECT decision, stage, verify_kind, len(step_token_ids) AS tokens, count(*) AS steps,
       sum(draft_tokens - draft_tokens_wasted) AS kept_draft_tokens
FROM steps GROUP BY ALL
"""
"""Makes a table of the steps by their length, for all figures of lengths: token ids are by far the longest column to read."""
LENGTHS = """
SELECT kind, tokens, sum(count)::BIGINT AS count FROM (
    SELECT decision AS kind, tokens, steps AS count FROM step_sums
    UNION ALL
    SELECT if(chosen_candidate IS NOT NULL, 'not_chosen', 'rejected'), tokens, 1 FROM (
        SELECT chosen_candidate, unnest(candidate_tokens) AS tokens, generate_subscripts(candidate_tokens, 1) - 1 AS place
        FROM steps)
    WHERE place IS DISTINCT FROM chosen_candidate)
GROUP BY ALL ORDER BY kind
"""
VERIFIED = """
SELECT step_index, count(*) AS verified, count(*) FILTER (decision = 'accepted') AS accepted
FROM steps WHERE verify_kind IS NOT NULL GROUP BY step_index
"""
KINDS = """
SELECT verify_kind AS kind, score_scale AS name, score_low AS low, score_high AS high, score_unit AS unit, score_integers AS integers,
       CASE WHEN count(DISTINCT threshold) = 1 THEN min(threshold) END AS threshold
FROM steps WHERE verify_kind IS NOT NULL GROUP BY ALL ORDER BY min(start_unix_ns), kind, name
"""
VALUES = """
SELECT score_value AS value, decision = 'accepted' AS accepted
FROM steps WHERE verify_kind = $kind AND score_scale = $name AND score_unit = $unit AND score_integers = $integers
AND score_low IS NOT DISTINCT FROM $low::DOUBLE AND score_high IS NOT DISTINCT FROM $high::DOUBLE AND NOT isnan(score_value)
"""
BINS = 20
"""Number of bins of a scale with two ends; about half as many, of round width, where an end is open."""
OUTLIERS = 0.005
"""Share of the values that lie beyond the last edge at an open end; they count in the last bin."""


class _Kind(Struct, frozen=True, kw_only=True):
    """A kind of verdict: the fields of its `Scale`, and its threshold where that was the same in all steps."""

    kind: str
    name: str
    low: float | None
    high: float | None
    unit: str
    integers: bool
    threshold: float | None


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
    step, or, of candidates, `rejected` where none was committed, and `not_chosen` where another one was."""
    verified: Array
    """Number of verified steps, by step number."""
    accepted: Array
    """Number of them that were accepted, by step number."""
    scores: dict[str, Scores]
    """Values of verdicts by kind of verifying stage; see `read_scores`."""


def count_steps(query: Query) -> StepCounts:
    """Count the steps of a run."""
    query.execute(STEP_SUMS)
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


def read_scores(query: Query) -> dict[str, Scores]:
    """Bins of the verdicts of a run, by kind of verifier, or by kind and scale where one kind has several scales."""
    kinds = query.rows(KINDS, _Kind)
    several = {kind for kind, count in Counter(each.kind for each in kinds).items() if count > 1}
    return {f"{each.kind}, {each.name}" if each.kind in several else each.kind: _scores(query, each) for each in kinds}


def _scores(query: Query, kind: _Kind) -> Scores:
    wanted = {name: value for name, value in structs.asdict(kind).items() if name != "threshold"}
    rows = query.columns(VALUES, **wanted)
    scale = Scale(kind.name, kind.low, kind.high, kind.unit, kind.integers)
    edges, accepted = edges_of(scale, rows["value"]), rows["accepted"].astype(bool)
    count = len(edges) - 1
    bins = np.clip(np.searchsorted(edges, rows["value"], "right") - 1, 0, count - 1)
    return Scores(
        scale=scale,
        edges=edges,
        accepted=np.bincount(bins[accepted], minlength=count),
        rejected=np.bincount(bins[~accepted], minlength=count),
        threshold=kind.threshold,
    )


def scale_of(step: Mapping[str, Any]) -> Scale:
    """The scale of a step's verdict; `step` is a row of the steps table whose step was verified."""
    return Scale(step["score_scale"], step["score_low"], step["score_high"], step["score_unit"], step["score_integers"])


def edges_of(scale: Scale, values: Array) -> Array:
    """Edges of the bins for `values` on `scale`. Whole numbers are in the middle of their bins; open ends are where the values end."""
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, (OUTLIERS, 1 - OUTLIERS)) if len(finite) else (0.0, 0.0)
    low, high = sorted(float(found if end is None else end) for end, found in ((scale.low, low), (scale.high, high)))
    if scale.integers:
        first, last = math.floor(low), math.ceil(high)
        whole = -(-(last - first + 1) // (2 * BINS))
        return np.asarray(first - 0.5 + whole * np.arange((last - first) // whole + 2))
    if scale.low is not None and scale.high is not None:
        return np.linspace(low, high, BINS + 1)
    width = round_width((high - low) / (BINS / 2))
    digits = 3 - math.floor(math.log10(width))
    if scale.high is not None:
        return np.round(high - width * np.arange(max(1, math.ceil((high - low) / width)), -1, -1), digits)
    start = low if scale.low is not None else width * math.floor(low / width)
    return np.round(start + width * np.arange(max(1, math.ceil((high - start) / width)) + 1), digits)


def round_width(width: float) -> float:
    """The least number of 1, 2 or 5 times a power of ten that is not below `width`; 1 where `width` is 0."""
    if width <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(width))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= width * (1 - 1e-9))
