"""One step of a chain to read: a row of the steps table enters, the step with its candidates and the verifier's word leaves.

All text is made harmless: what a browser would obey or show in another place is visible. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from pipeline.analysis.capabilities import is_share, scale_of
from pipeline.text import sanitize

MOST_TEXT = 40_000
"""Characters of one text; of a longer one the middle is left out."""
STEP_COLUMNS = (
    "chain_id",
    "step_index",
    "stage",
    "source_engine",
    "decision",
    "verify_kind",
    "score_value",
    "score_label",
    "score_probs",
    "score_mass",
    "threshold",
    "num_distinct_candidates",
    "chosen_candidate",
    "step_text",
    "candidate_texts",
    "candidate_tokens",
    "step_token_ids",
    "step_time_s",
    "wait_time_s",
)


class Candidate(Struct, frozen=True):
    """One drafted candidate."""

    text: str
    tokens: int
    probability: float | None
    """That the verifier gave it; null where its option is not known."""
    chosen: bool
    same_as: int | None
    """The earlier candidate that says the same."""


class Step(Struct, frozen=True, kw_only=True):
    """One committed step and the round that led to it."""

    index: int
    decision: str
    stage: str
    engine: str
    text: str
    tokens: int
    time_s: float
    wait_s: float
    verdict: str | None
    """What the verifier said, in words."""
    candidates: tuple[Candidate, ...]


def step_of(row: Mapping[str, Any]) -> Step:
    """The step of a row with `STEP_COLUMNS`."""
    return Step(
        index=row["step_index"],
        decision=row["decision"],
        stage=row["stage"],
        engine=row["source_engine"],
        text=shown(row["step_text"]),
        tokens=len(row["step_token_ids"]),
        time_s=row["step_time_s"],
        wait_s=row["wait_time_s"],
        verdict=_said(row),
        candidates=tuple(_candidates(row)),
    )


def _candidates(row: Mapping[str, Any]) -> Iterator[Candidate]:
    texts: Sequence[str] = row["candidate_texts"]
    first: dict[str, int] = {}
    for place, text in enumerate(texts):
        first.setdefault(text, place)
    options = option_probabilities(row, len(first))
    for place, (text, tokens) in enumerate(zip(texts, row["candidate_tokens"], strict=True)):
        same_as = first[text] if first[text] != place else None
        probability = options[list(first).index(text)] if options else None
        said = "" if same_as is not None else shown(text)
        yield Candidate(said, tokens, probability, place == row["chosen_candidate"], same_as)


def option_probabilities(row: Mapping[str, Any], distinct: int) -> Sequence[float]:
    """The probability of each distinct candidate of a step; empty where the trace does not tell which option was which.

    Options of a choice are `none`, where it may be said, and the distinct candidates by their token ids; the steps table has
    texts. Where as many texts differ, they are the same ones.
    """
    probs: Sequence[float] = row["score_probs"]
    if not row["score_of_candidates"] or distinct != row["num_distinct_candidates"]:
        return ()
    offered = probs[1:] if len(probs) == distinct + 1 else probs
    return offered if len(offered) == distinct else ()


def _said(row: Mapping[str, Any]) -> str | None:
    """The verifier's word."""
    if row["verify_kind"] is None or row["score_value"] is None:
        return None
    scale, label, threshold = scale_of(row), row["score_label"], row["threshold"]
    said = []
    if threshold is None and row["score_of_candidates"]:
        said.append("none of the candidates" if label == "0" else f"candidate {label} of {row['num_distinct_candidates']}")
    elif threshold is None and label:
        said.append(label)
    value = f"{row['score_value']:.1%}" if is_share(scale) else f"{row['score_value']:.3g}"
    said.append(" ".join(filter(None, (value, scale.unit))) + ("" if threshold is None else f" against a threshold of {threshold:g}"))
    # A value with a unit was measured: no question was asked whose answer could have been no valid option.
    asked = row["score_mass"] is not None and not scale.unit
    mass = f" ({row['score_mass']:.1%} of all probability on valid options)" if asked else ""
    return shown(f"{row['verify_kind']}: {', '.join(said)}{mass}")


def shown(text: str) -> str:
    """`text`, harmless and not endless."""
    if len(text) > MOST_TEXT:
        half = MOST_TEXT // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
    return sanitize(text)
