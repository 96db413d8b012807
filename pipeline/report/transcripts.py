"""Chains to read in full: the chains and steps tables and, where it has not changed, the input file enter, transcripts leave.

Only the chains asked for are held. All text is sanitized: control characters are made visible.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.analysis.quality.option_mass import LOW
from pipeline.analysis.quality.verdict_values import scale_of
from pipeline.analysis.time.thinking import queued_s
from pipeline.data.problems import Problems, open_problems
from pipeline.engines.registry import backend_of
from pipeline.errors import BadRow, InputError, PipelineError
from pipeline.files import open_file
from pipeline.report.chain_list import ChainList
from pipeline.store.kept_problems import kept_problems
from pipeline.store.query import Query
from pipeline.store.read import read_batches
from pipeline.store.run_file import RunFile
from pipeline.text import sanitize

MOST_TRANSCRIPTS = 8_000_000
"""Limit of the characters in all transcripts of a run together; further transcripts are left out."""
CHAIN_COLUMNS = (
    "chain_id",
    "problem_id",
    "sample_index",
    "input_row",
    "answer",
    "answer_text",
    "reference_answer",
    "correct",
    "stop_reason",
    "error_type",
    "error_message",
    "error_stage",
    "steps",
    "accepted_steps",
    "fallback_steps",
    "thought_tokens",
    "chain_time_s",
)
MOST_TEXT = 40_000
"""Limit of the characters in one text; the middle of a longer one is left out."""
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
    "score_scale",
    "score_unit",
    "score_low",
    "score_high",
    "score_integers",
    "score_of_candidates",
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
    stage: str
    engine: str
    text: str
    tokens: int
    time_s: float
    wait_s: float
    verdict: str | None
    """The verdict in words; null for a step that was not verified."""
    cut: bool
    """Whether it ended at its limit; guidance always does, and is not meant."""
    candidates: tuple[ShownCandidate, ...]


class Transcript(Struct, frozen=True, kw_only=True):
    """One chain in full."""

    chain_id: str
    why: tuple[str, ...]
    """Why it is shown: `failed`, `wrong`, `slowest`."""
    verdict: str
    """`right`, `wrong`, `failed`, `cancelled` or `not graded`."""
    problem: str | None
    """The problem's text; null where the input file is gone or has changed."""
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


class Transcripts(Struct, frozen=True):
    """The transcripts that fit into the limit, and how many were left out."""

    transcripts: tuple[Transcript, ...]
    left_out: int = 0


def read_transcripts(folder: Path, run: RunFile, chains: ChainList, reasons: Mapping[int, Sequence[str]]) -> Transcripts:
    """The transcripts of some chains of the run folder `folder`; raises `InputError` where its tables cannot be read.

    `reasons` gives, by a chain's index in `chains`, why it is shown; the transcripts are in its order.
    """
    return transcripts_of(folder, run, {chains.names[place]: tuple(each) for place, each in reasons.items()})


def transcripts_of(folder: Path, run: RunFile, why: Mapping[str, tuple[str, ...]]) -> Transcripts:
    """The transcripts of the chains that `why` names, in its order; it says of each why it is shown."""
    rows = {row["chain_id"]: row for row in _rows(read_batches(folder, "chains", CHAIN_COLUMNS), list(why))}
    steps: dict[str, list[ShownStep]] = {}
    size = 0
    for row in _rows(read_batches(folder, "steps", STEP_COLUMNS, ["cut"]), list(why)):
        if size < MOST_TRANSCRIPTS or row["chain_id"] in steps:
            step = step_of(row)
            steps.setdefault(row["chain_id"], []).append(step)
            size += len(step.text) + sum(len(each.text) for each in step.candidates)
    kept = [name for name in why if name in steps or not rows[name]["steps"] or size < MOST_TRANSCRIPTS]
    problems = _problems(folder, run, [rows[name]["input_row"] for name in kept])
    with Query(folder) as db:
        queued = queued_s(db, kept)
    transcripts = [_transcript(rows[name], why[name], problems, steps.get(name, []), queued[name]) for name in kept]
    return Transcripts(tuple(transcripts), len(why) - len(kept))


def unused_drafts(folder: Path, run: RunFile, chain: str) -> list[str]:
    """What was drafted after the last step of `chain`, so that it is in none; a number of tokens where the tokenizer cannot be had."""
    last = max((row["calls"] or 0 for row in _rows(read_batches(folder, "steps", ["chain_id", "calls"]), [chain])), default=0)
    columns = ["chain_id", "call_index", "purpose", "engine", "error_type", "output_token_ids"]
    found = []
    for row in _rows(read_batches(folder, "calls", columns), [chain]):
        if row["purpose"] == "draft" and row["error_type"] is None and row["call_index"] >= last:
            decode = _decoder(row["engine"], run)
            found += [f"({len(ids)} tokens)" if decode is None else shown(decode(ids)) for ids in row["output_token_ids"]]
    return found


def _decoder(role: str, run: RunFile) -> Callable[[Sequence[int]], str] | None:
    spec = run.plan.engines[role]
    try:
        make = backend_of(spec).tokenizer
        return None if make is None else make(role, spec).decode
    except PipelineError:
        return None


def _rows(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The rows of the chains `names`, in the order of the table."""
    wanted = pa.array(names, pa.string())
    for batch in batches:
        mine = pc.is_in(batch.column("chain_id"), wanted)
        if pc.any(mine).as_py():
            yield from batch.filter(mine).to_pylist()


def _problems(folder: Path, run: RunFile, rows: Sequence[int]) -> dict[int, str]:
    """Texts of the problems in these rows of the input; empty where the run has not kept it and the file is gone or has changed."""
    try:
        left, found = set(rows), {}
        for item in kept_problems(folder, run.input) or _input_file(run):
            if item.row in left:
                left.discard(item.row)
                found[item.row] = item.what if isinstance(item, BadRow) else item.problem
            if not left:
                break
    except (OSError, ValueError, InputError):
        return {}
    return found


def _input_file(run: RunFile) -> Problems:
    path = Path(run.options.get("input") or run.input.file)
    with open_file(path) as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != run.input.sha256:
            raise InputError(str(path), "is not the input of this run")
    return open_problems(path, run.input.columns, run.input.part)


def _transcript(
    row: Mapping[str, Any], why: tuple[str, ...], problems: Mapping[int, str], steps: Sequence[ShownStep], queued: float
) -> Transcript:
    return Transcript(
        chain_id=shown(row["chain_id"]),
        why=why,
        verdict=_verdict(row),
        problem=_maybe(problems.get(row["input_row"])),
        answer=_maybe(row["answer"]),
        answer_text=_maybe(row["answer_text"]),
        reference=_maybe(row["reference_answer"]),
        ended=shown(_ended(row)),
        facts=_facts(row, queued),
        steps=tuple(sorted(steps, key=lambda step: step.index)),
    )


def _verdict(row: Mapping[str, Any]) -> str:
    if row["error_type"] is not None or row["stop_reason"] == "cancelled":
        return "cancelled" if row["stop_reason"] == "cancelled" else "failed"
    return {True: "right", False: "wrong", None: "not graded"}[row["correct"]]


def _ended(row: Mapping[str, Any]) -> str:
    if row["error_type"] is None:
        return str(row["stop_reason"])
    return f"{row['error_type']} in {row['error_stage'] or 'reading the input'}: {row['error_message'] or ''}"


def _facts(row: Mapping[str, Any], queued: float) -> str:
    return (
        f"{row['chain_time_s']:.3g} s ({queued:.3g} s queued); {row['steps']} steps, {row['accepted_steps']} accepted, "
        f"{row['fallback_steps']} fallback; {row['thought_tokens']:,} tokens of thought"
    )


def _maybe(text: str | None) -> str | None:
    return None if text is None else shown(text)


def step_of(row: Mapping[str, Any]) -> ShownStep:
    """Make a `ShownStep` of a row with `STEP_COLUMNS`."""
    return ShownStep(
        index=row["step_index"],
        decision=row["decision"],
        stage=row["stage"],
        engine=row["source_engine"],
        text=shown(row["step_text"]),
        tokens=len(row["step_token_ids"]),
        time_s=row["step_time_s"],
        wait_s=row["wait_time_s"],
        verdict=_said(row),
        cut=bool(row.get("cut")) and row["decision"] != "guidance",
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


def _said(row: Mapping[str, Any]) -> str | None:
    """The verdict of a step in words; None for a step that was not verified."""
    if row["verify_kind"] is None or row["score_value"] is None:
        return None
    scale, label, threshold = scale_of(row), row["score_label"], row["threshold"]
    said = []
    if threshold is None and row["score_of_candidates"]:
        said.append(
            "none of the candidates" if row["chosen_candidate"] is None else f"candidate {label} of {row['num_distinct_candidates']}"
        )
    elif threshold is None and label:
        said.append(label)
    value = f"{row['score_value']:.1%}" if scale.is_share else f"{row['score_value']:.3g}"
    said.append(" ".join(filter(None, (value, scale.unit))) + ("" if threshold is None else f" against a threshold of {threshold:g}"))
    # A value with a unit was measured: no question was asked whose answer could have been no valid option.
    asked = row["score_mass"] is not None and row["score_probs"] and not scale.unit
    mass = f" ({row['score_mass']:.1%} probability on valid options)" if asked and row["score_mass"] < LOW else ""
    return shown(f"{row['verify_kind']}: {', '.join(said)}{mass}")


def shown(text: str) -> str:
    """`text`, sanitized; of one longer than `MOST_TEXT` the middle is left out."""
    if len(text) > MOST_TEXT:
        half = MOST_TEXT // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"
    return sanitize(text)
