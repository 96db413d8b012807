"""Reads a recorded run for simulated engines that are to be like its own: trace files enter, calls and lengths of texts leave.

Calls have their time of arrival, tokens and duration; lengths become a `SimTextSpec` for each role.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, structs

from pipeline.analysis.arrays import Array
from pipeline.engines.sim.spec import SimTextSpec
from pipeline.errors import InputError
from pipeline.graph.plan import Plan
from pipeline.store.events import UNFINISHED
from pipeline.store.read import read_batches, with_lengths

ROUNDING_NS = 2
"""How much earlier calls arrive than recorded: one that arrived at the end of an iteration would miss the next if rounded up."""
RESOLUTION_S = 1e-9
"""Calls that took fewer seconds are taken to have taken none: instants of a trace are whole nanoseconds."""
COLUMNS = (
    "engine",
    "stage",
    "error_type",
    "submit_unix_ns",
    "e2e_latency_s",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "choice_count",
    "output_token_ids",
)
CORRELATION = 0.5
"""Assumed correlation of a step's candidates (`SimTextSpec`): it cannot be found from a run with one number of candidates."""


class TimedCall(Struct, frozen=True):
    """One answered call."""

    stage: str
    submit_s: float
    """When it was sent, in seconds since the first call of any engine."""
    duration_s: float
    """Seconds in flight, the engine's queue included."""
    input_tokens: int
    cached_tokens: int | None
    """Null where the engine did not say; then all of the prompt is taken as computed, and the time of the call counts for nothing."""
    lengths: tuple[int, ...]
    """Tokens sampled for each candidate; a call that only scores has one."""


def read_calls(run: Path, max_calls: int) -> dict[str, list[TimedCall]]:
    """Answered calls of each engine, in the order in which they were sent, up to the moment at which one engine has `max_calls` of them.

    Up to then no call is missing. Of a run with replicas, whose engines share nothing, the calls are those of the replica with the least
    number among the first that were answered. Raises `InputError` where there are none, or none of an engine took time.
    """
    rows: list[dict[str, Any]] = []
    for batch in read_batches(run, "calls", COLUMNS, ["replica"]):
        answered = [row for row in with_lengths(batch, "output_token_ids").to_pylist() if row["error_type"] is None]
        replica = _one_replica(rows or answered)
        rows += (row for row in answered if row.get("replica") == replica)
        if len(rows) > 16 * max_calls:  # rows come in order of their ends: the earliest are among these
            break
    if not rows:
        raise InputError(str(run), "has no answered call, so there is nothing to calibrate with")
    rows.sort(key=lambda row: int(row["submit_unix_ns"]))
    start = rows[0]["submit_unix_ns"]
    found: dict[str, list[TimedCall]] = {row["engine"]: [] for row in rows}
    for row in rows:
        calls = found[row["engine"]]
        if len(calls) == max_calls:
            break
        calls.append(_timed_call(row, start))
    if timeless := [role for role, calls in found.items() if not any(call.duration_s >= RESOLUTION_S for call in calls)]:
        raise InputError(str(run), f"no call of engine {timeless[0]!r} took time, so there is nothing to calibrate with")
    return found


def _one_replica(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """The least number of a replica that these rows name; None where they name none."""
    return min((row["replica"] for row in rows if row.get("replica") is not None), default=None)


def undisturbed(calls: Mapping[str, Sequence[TimedCall]]) -> dict[str, Array]:
    """For each call, whether it took time, what it computed is known, and it ended before the last of `calls` was sent: later ones met
    calls that are not among these.

    Where no call of a role did, all of them of which it is known; where it is known of none, all that took time.
    """
    last = max(call.submit_s for listed in calls.values() for call in listed)
    found = {}
    for role, listed in calls.items():
        took = durations(listed) >= RESOLUTION_S
        known = took & [call.cached_tokens is not None for call in listed]
        ended = known & [call.submit_s + call.duration_s <= last for call in listed]
        found[role] = next((which for which in (ended, known) if which.any()), took)
    return found


def _timed_call(row: Mapping[str, Any], start_ns: int) -> TimedCall:
    return TimedCall(
        row["stage"],
        (row["submit_unix_ns"] - start_ns - ROUNDING_NS) / 1e9,
        row["e2e_latency_s"],
        row["input_tokens"],
        None if (cached := row["cached_input_tokens"]) is None else min(cached, row["input_tokens"] - 1),
        _lengths(row["output_token_ids"], row["output_tokens"]),
    )


def _lengths(written: Sequence[int], sampled: int) -> tuple[int, ...]:
    """Tokens of each candidate. Those sampled beyond the `written` ones are end-of-sequence tokens, which go to the shortest first."""
    lengths = [max(each, 1) for each in written] or [1]
    for place in np.argsort(lengths, kind="stable")[: max(0, sampled - sum(lengths))]:
        lengths[int(place)] += 1
    return tuple(lengths)


def durations(calls: Sequence[TimedCall]) -> Array:
    """Seconds that each of `calls` took."""
    return np.array([call.duration_s for call in calls])


class Moments(Struct, frozen=True):
    """Mean of positive numbers, and standard deviation of their logarithms."""

    mean: float
    sigma: float


class Lengths(Struct, frozen=True, kw_only=True):
    """Lengths of the texts of a run; None where it has no such text."""

    drafters: frozenset[str]
    """Roles that draft candidates."""
    steps: Moments | None
    """Number of steps of a thought."""
    step_tokens: dict[str, Moments]
    """Tokens of a step by the role that wrote it, drafted candidates included."""
    answer_tokens: float | None
    """Mean tokens of an answer."""
    acceptance: float | None
    """Share of the verified steps that were accepted, 0 to 1."""
    candidates: float
    """Mean number of candidates of a verified step."""


def read_lengths(run: Path, plan: Plan) -> Lengths:
    """The lengths of the texts of the run of `plan` in the folder `run`; raises `InputError` where it cannot be read."""
    tokens: dict[str, list[int]] = {}
    verified = accepted = drafted = 0
    columns = ["verify_kind", "decision", "source_engine", "step_token_ids", "candidate_tokens"]
    switched = plan.speculate == "auto"
    for batch in read_batches(run, "steps", columns, ["mode"]):
        for row in with_lengths(batch, "step_token_ids").to_pylist():
            if switched and row["mode"] == "direct":
                continue  # as much as the target wrote at a stretch, which is no step
            lengths, writer = row["candidate_tokens"], row["source_engine"]
            if row["decision"] != "guidance" and not lengths:
                tokens.setdefault(writer, []).append(row["step_token_ids"])
            for role, length in zip(_drafters(plan.drafters, len(lengths), writer), lengths, strict=True):
                tokens.setdefault(role, []).append(length)
            verified += row["verify_kind"] is not None
            accepted += row["decision"] == "accepted"
            drafted += len(lengths) if row["verify_kind"] is not None else 0
    return Lengths(
        drafters=frozenset(plan.drafters),
        steps=moments(_steps(run, tokens if switched else {})),
        step_tokens={role: found for role, lengths in tokens.items() if (found := moments(lengths)) is not None},
        answer_tokens=_answer_tokens(run, plan),
        acceptance=accepted / verified if verified else None,
        candidates=drafted / verified if verified else 1.0,
    )


def _drafters(roles: Sequence[str], candidates: int, writer: str) -> Sequence[str]:
    """The role of each candidate of a step: as in the plan, or else, where the number differs, the first role that drafts."""
    return roles if len(roles) == candidates else [roles[0] if roles else writer] * candidates


def text_of(role: str, lengths: Lengths) -> SimTextSpec:
    """The simulated text of one role; figures that the run does not have are those of another role, or the defaults."""
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
    accuracy = accuracy_for(lengths.acceptance, lengths.candidates) if role in lengths.drafters else 1.0
    return structs.replace(text, step_accuracy=accuracy, step_correlation=CORRELATION, verifier_accuracy=1.0)


def moments(values: Sequence[int]) -> Moments | None:
    """The moments of the positive ones of `values`; None where there are none."""
    positive = np.array([value for value in values if value > 0], float)
    if not len(positive):
        return None
    return Moments(float(positive.mean()), float(np.log(positive).std()))


def accuracy_for(acceptance: float, candidates: float) -> float:
    """The accuracy of drafted steps at which a faultless verifier finds a right one among `candidates` with the chance `acceptance`.

    It solves for a in 1 - acceptance = c (1 - a) + (1 - c) (1 - a)^N (`SimTextSpec`) by halving.
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        wrong = CORRELATION * (1 - middle) + (1 - CORRELATION) * math.pow(1 - middle, candidates)
        low, high = (middle, high) if wrong > 1 - acceptance else (low, middle)
    return round(high, 6)


def _steps(run: Path, lengths: Mapping[str, Sequence[int]]) -> list[int]:
    """The steps of each finished thought. Given `lengths` of some steps, as many steps of their mean length as the thought is long."""
    known = [length for each in lengths.values() for length in each]
    mean = max(1.0, float(np.mean(known))) if known else None
    found: list[int] = []
    for batch in read_batches(run, "chains", ["steps", "thought_tokens", "stop_reason"]):
        rows = [row for row in batch.to_pylist() if row["stop_reason"] not in UNFINISHED]
        found += (row["steps"] if mean is None else max(1, round(row["thought_tokens"] / mean)) for row in rows)
    return found


def _answer_tokens(run: Path, plan: Plan) -> float | None:
    """Mean output tokens over the calls of stages that answer; None without such calls."""
    answering = {stage.name for stage in plan.stages() if stage.spec.purpose == "answer"}
    found: list[int] = []
    for batch in read_batches(run, "calls", ["stage", "output_tokens", "error_type"]):
        found += (row["output_tokens"] for row in batch.to_pylist() if row["stage"] in answering and row["error_type"] is None)
    return float(np.mean(found)) if found else None
