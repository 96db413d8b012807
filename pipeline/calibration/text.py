"""What simulated engines should write so that a run on them has the lengths of a recorded one: moments of its tables."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct, structs

from pipeline.engines.sim.spec import SimTextSpec
from pipeline.trace.events import UNFINISHED
from pipeline.trace.read import read_batches

CORRELATION = 0.5
"""Of the candidates of a step: not to be told from a run with one number of candidates, so it is assumed."""


class Moments(Struct, frozen=True):
    """Mean of positive numbers, and the standard deviation of their logarithms."""

    mean: float
    sigma: float


class Lengths(Struct, frozen=True, kw_only=True):
    """Of a run: null where it has nothing of the kind."""

    steps: Moments | None
    """Steps of a thought."""
    step_tokens: dict[str, Moments]
    """By the role that wrote them, drafted candidates included."""
    answer_tokens: float | None
    acceptance: float | None
    """Of steps whose candidates were verified, 0 to 1."""
    candidates: float
    """Drafted for a verified step, on average."""


def read_lengths(run: Path) -> Lengths:
    """The lengths of what was written in the run folder; raises `InputError`."""
    tokens: dict[str, list[int]] = {}
    verified = accepted = drafted = 0
    columns = ["verify_kind", "decision", "source_engine", "step_token_ids", "candidate_tokens"]
    for batch in read_batches(run, "steps", columns):
        for row in batch.to_pylist():
            if row["decision"] != "guidance" and not row["candidate_tokens"]:
                tokens.setdefault(row["source_engine"], []).append(len(row["step_token_ids"]))
            tokens.setdefault("draft", []).extend(row["candidate_tokens"])
            verified += row["verify_kind"] is not None
            accepted += row["decision"] == "accepted"
            drafted += len(row["candidate_tokens"]) if row["verify_kind"] is not None else 0
    return Lengths(
        steps=moments(_steps(run)),
        step_tokens={role: found for role, lengths in tokens.items() if (found := moments(lengths)) is not None},
        answer_tokens=_answer_tokens(run),
        acceptance=accepted / verified if verified else None,
        candidates=drafted / verified if verified else 1.0,
    )


def text_of(role: str, lengths: Lengths) -> SimTextSpec:
    """The text of one role. Where a run says nothing of something, the other role's figure stands, or the default."""
    text = SimTextSpec()
    if lengths.steps is not None:
        text = structs.replace(text, steps_mean=lengths.steps.mean, steps_sigma=min(lengths.steps.sigma, 3.0))
    found = lengths.step_tokens.get(role) or next(iter(lengths.step_tokens.values()), None)
    if found is not None:
        text = structs.replace(text, step_tokens_mean=max(found.mean, 1.01), step_tokens_sigma=min(found.sigma, 3.0))
    if lengths.answer_tokens is not None:
        text = structs.replace(text, answer_tokens=max(round(lengths.answer_tokens), 1))
    if lengths.acceptance is None:
        return text
    accuracy = accuracy_for(lengths.acceptance, lengths.candidates) if role == "draft" else 1.0
    return structs.replace(text, step_accuracy=accuracy, step_correlation=CORRELATION, verifier_accuracy=1.0)


def moments(values: Sequence[int]) -> Moments | None:
    """Of those that are positive; None of none."""
    positive = np.array([value for value in values if value > 0], float)
    if not len(positive):
        return None
    return Moments(float(positive.mean()), float(np.log(positive).std()))


def accuracy_for(acceptance: float, candidates: float) -> float:
    """The accuracy of a step for which a faultless verifier finds a right one among so many `acceptance` of the time.

    Solved for a in 1 - acceptance = c (1 - a) + (1 - c) (1 - a)^N (`SimTextSpec`) by halving.
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        wrong = CORRELATION * (1 - middle) + (1 - CORRELATION) * math.pow(1 - middle, candidates)
        low, high = (middle, high) if wrong > 1 - acceptance else (low, middle)
    return round(high, 6)


def _steps(run: Path) -> list[int]:
    found: list[int] = []
    for batch in read_batches(run, "chains", ["steps", "stop_reason"]):
        found += (row["steps"] for row in batch.to_pylist() if row["stop_reason"] not in UNFINISHED)
    return found


def _answer_tokens(run: Path) -> float | None:
    found: list[int] = []
    for batch in read_batches(run, "calls", ["kind", "output_tokens", "error_type"]):
        found += (row["output_tokens"] for row in batch.to_pylist() if row["kind"] == "answer" and row["error_type"] is None)
    return float(np.mean(found)) if found else None
