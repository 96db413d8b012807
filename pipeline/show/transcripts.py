"""Chains to read in full: an open run enters, transcripts leave.

Only the chains asked for are held. All text is sanitized: control characters are made visible.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from pipeline.analysis.steps import LOW, scale_of
from pipeline.files import sanitize
from pipeline.show.problems import VERDICT
from pipeline.store.query import Query

MAX_TRANSCRIPTS = 400_000
"""Limit of the characters in all transcripts of a page together; those of chains after the one that reaches it are left out."""
MAX_TEXT = 40_000
"""Limit of the characters in one text; the middle of a longer one is left out."""
WANTED = "chain_id IN (SELECT unnest($chains::VARCHAR[]))"
CHAINS = f"""
SELECT chain_id, {VERDICT}, coalesce(flaw, problem) AS problem, answer, answer_text, reference_answer AS reference,
       CASE WHEN error_type IS NULL THEN stop_reason
            ELSE concat(error_type, ' in ', coalesce(error_stage, 'reading the input'), ': ', error_message) END AS ended,
       concat(format('{{:.3g}} s; {{}} steps, {{}} accepted, {{}} fallback', chain_time_s, steps, accepted_steps, fallback_steps),
              if(unverified_steps > 0, format(', {{}} unverified', unverified_steps), ''),
              format('; {{:,}} tokens of thought', thought_tokens)) AS facts,
       start_unix_ns, end_unix_ns
FROM chains LEFT JOIN (SELECT input_row, flaw, problem FROM problems) USING (input_row) WHERE {WANTED}"""
STEPS = f"""
SELECT chain_id, step_index, source_engine, decision, cut, step_text, step_tokens AS tokens, step_time_s, wait_time_s,
       candidate_texts, candidate_tokens, chosen_candidate, num_distinct_candidates,
       verify_kind, threshold, columns('score_.*'), columns('gate_.*')
FROM steps WHERE {WANTED} AND ({{within}}) ORDER BY chain_id, step_index"""
"""The steps of some chains, `within` the times of these, by which most row groups need not be read."""
SLACK_NS = 10_000_000_000
"""How far the clocks of machines may be apart on which a chain was."""


class ShownCandidate(Struct, frozen=True):
    """One drafted candidate of a step."""

    text: str
    """Empty where `same_as` is set."""
    tokens: int
    probability: float | None
    """The probability that the verifier gave to it; null where it is not known which option it was."""
    chosen: bool
    same_as: int | None
    """Index of an earlier candidate with the same text; null where there is none."""


class ShownStep(Struct, frozen=True, kw_only=True):
    """One committed step, with the candidates and the verdict that led to it."""

    index: int
    decision: str
    engine: str
    text: str
    tokens: int
    time_s: float
    wait_s: float
    verdict: str | None
    """The verdict in words; null for a step that was not verified."""
    gates: tuple[str, ...]
    """What each gate found about the draft, in words."""
    cut: bool
    """True if it ended at its limit; guidance always does, and is not meant."""
    candidates: tuple[ShownCandidate, ...]


class Transcript(Struct, frozen=True, kw_only=True):
    """One chain in full."""

    chain_id: str
    verdict: str
    """One of `problems.VERDICTS`."""
    problem: str | None
    """The problem, null where the run has not kept it."""
    answer: str | None
    answer_text: str | None
    """What was written after the thought."""
    reference: str | None
    """The reference answer."""
    ended: str
    """What ended the chain: its stop reason, or its error."""
    facts: str
    """Time, steps and tokens, in one line."""
    steps: tuple[ShownStep, ...]


def read_transcripts(db: Query, chains: Sequence[str], made_up: bool = False) -> list[Transcript]:
    """The transcripts of these chains, if they have ended, in their order, as far as they fit into `MAX_TRANSCRIPTS`."""
    rows = {row["chain_id"]: row for row in db.arrow(CHAINS, chains=list(chains), made_up=made_up).to_pylist()}
    times = ((row.pop("start_unix_ns") - SLACK_NS, row.pop("end_unix_ns") + SLACK_NS) for row in rows.values())
    within = " OR ".join(f"end_unix_ns BETWEEN {since} AND {until}" for since, until in times) or "false"
    steps: dict[str, list[ShownStep]] = {name: [] for name in chains if name in rows}
    for row in db.arrow(STEPS.format(within=within), chains=list(chains)).to_pylist():
        steps[row["chain_id"]].append(step_of(row))
    kept, left = list[str](), MAX_TRANSCRIPTS
    for name, said in steps.items():
        if left > 0:
            kept.append(name)
            left -= sum(len(step.text) + sum(len(each.text) for each in step.candidates) for step in said)
    texts = ({field: text and shown(text) for field, text in rows[name].items()} for name in kept)
    return [Transcript(steps=tuple(steps[name]), **fields) for name, fields in zip(kept, texts, strict=True)]


def step_of(row: Mapping[str, Any]) -> ShownStep:
    """Make a `ShownStep` of a row of `STEPS`."""
    return ShownStep(
        index=row["step_index"],
        decision=row["decision"],
        engine=row["source_engine"],
        text=shown(row["step_text"]),
        tokens=row["tokens"],
        time_s=row["step_time_s"],
        wait_s=row["wait_time_s"],
        verdict=_verdict(row),
        gates=tuple(_gates(row)),
        cut=bool(row["cut"]) and row["decision"] != "guidance",
        candidates=tuple(_candidates(row)),
    )


def _candidates(row: Mapping[str, Any]) -> Iterator[ShownCandidate]:
    texts: Sequence[str] = row["candidate_texts"]
    first: dict[str, int] = {}
    for place, text in enumerate(texts):
        first.setdefault(text, place)
    options = option_probabilities(row, len(first))
    for place, (text, tokens) in enumerate(zip(texts, row["candidate_tokens"], strict=True)):
        same_as = first[text] if first[text] != place else None
        probability = options[list(first).index(text)] if options else None
        said = "" if same_as is not None else shown(text)
        yield ShownCandidate(said, tokens, probability, place == row["chosen_candidate"], same_as)


def option_probabilities(row: Mapping[str, Any], distinct: int) -> Sequence[float]:
    """The probability of each distinct candidate of a step; empty where the trace does not tell which option was which.

    The options of a choice are `none`, where the verifier may reject all, and the candidates that differ in their token ids. The
    steps table has only texts: where as many texts differ as ids did, these are the options.
    """
    probs: Sequence[float] = row["score_probs"]
    if not row["score_of_candidates"] or distinct != row["num_distinct_candidates"]:
        return ()
    offered = probs[1:] if len(probs) == distinct + 1 else probs
    return offered if len(offered) == distinct else ()


def _verdict(row: Mapping[str, Any]) -> str | None:
    """The verdict of a step in words; None for a step that was not verified."""
    if row["verify_kind"] is None or row["score_value"] is None:
        return None
    scale, label, threshold = scale_of(row), row["score_label"], row["threshold"]
    said = []
    by_label = row["verify_kind"] == "choose" and threshold is not None  # which may name a candidate that was rejected
    if row["score_of_candidates"] and (threshold is None or by_label):
        none = label == row["score_options"][0] if by_label else row["chosen_candidate"] is None
        said.append("none of the candidates" if none else f"candidate {label} of {row['num_distinct_candidates']}")
    elif threshold is None and label:
        said.append(label)
    value = f"{row['score_value']:.1%}" if scale.is_share else f"{row['score_value']:.3g}"
    said.append(value + ("" if threshold is None else f" against a threshold of {threshold:g}"))
    asked = row["score_mass"] is not None and row["score_probs"]
    mass = f" ({row['score_mass']:.1%} probability on valid options)" if asked and row["score_mass"] < LOW else ""
    return shown(f"{row['verify_kind']}: {', '.join(said)}{mass}")


def _gates(row: Mapping[str, Any]) -> Iterator[str]:
    """What the gates of a step found, in words."""
    columns = ("gate_stage", "gate_statistic", "gate_value", "gate_threshold", "gate_flagged")
    for stage, statistic, value, threshold, flagged in zip(*(row[name] for name in columns), strict=True):
        found = "no value" if value is None else f"{value:.3g}"
        yield shown(f"{stage}: {statistic} {found} against a threshold of {threshold:g}, {'flagged' if flagged else 'passed'}")


def shown(text: str) -> str:
    """`text`, sanitized; of one longer than `MAX_TEXT` the middle is left out."""
    if len(text) > MAX_TEXT:
        half = MAX_TEXT // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
    return sanitize(text)
