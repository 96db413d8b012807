"""Reads a recorded run for simulated engines that are to be like its own: trace files enter, calls and lengths of texts leave.

Calls have their time of arrival, tokens and duration; lengths of texts become a `SimTextSpec` for each role.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from pipeline.analysis.time.work import Array
from pipeline.engines.sim.spec import SimTextSpec
from pipeline.errors import InputError
from pipeline.graph.plan import Plan
from pipeline.store.query import Query

ROUNDING_NS = 2
"""How much earlier calls arrive than recorded: one that arrived at the end of an iteration would miss the next if rounded up."""
RESOLUTION_S = 1e-9
"""Calls that took fewer seconds are taken to have taken none: instants of a trace are whole nanoseconds."""
CALLS = """
WITH answered AS (
    SELECT *, row_number() OVER (PARTITION BY engine ORDER BY submit_unix_ns, chain_id, call_index) AS number FROM calls
    WHERE error_type IS NULL AND replica IS NOT DISTINCT FROM (SELECT min(replica) FROM calls WHERE error_type IS NULL)
)
SELECT engine, stage, (submit_unix_ns - min(submit_unix_ns) OVER () - $earlier) / 1e9, e2e_latency_s, input_tokens,
    if(cached_input_tokens IS NULL, NULL, least(cached_input_tokens, input_tokens - 1)), output_tokens,
    list_transform(output_token_ids, lambda ids: len(ids))
FROM answered
WHERE number <= $calls AND submit_unix_ns <= coalesce((SELECT min(submit_unix_ns) FROM answered WHERE number = $calls), submit_unix_ns)
ORDER BY submit_unix_ns, chain_id, call_index
"""
"""The calls of one replica in the order in which they were sent, until the first engine had been sent enough."""
STEPS = """
WITH spoken AS (
    SELECT *, coalesce(len(candidate_tokens), 0) > 0 AND NOT (chosen_candidate IS NULL AND decision IN ('unverified', 'written')) AS drafted
    FROM steps
),
written AS (
    SELECT source_engine AS role, step_tokens AS tokens FROM spoken
    WHERE decision != 'guidance' AND NOT drafted
    UNION ALL
    SELECT if(len(roles) = len(candidate_tokens), roles[place], coalesce(roles[1], source_engine)), candidate_tokens[place]
    FROM spoken, unnest(range(1, len(candidate_tokens) + 1)) AS each(place), (SELECT $drafters::VARCHAR[] AS roles)
    WHERE drafted
)
"""
"""`written`: the tokens of each step that was no guidance, by the role that wrote it, or of its candidates, unless a gate only looked at
these and another text was written. Where there are not as many as roles that draft, all are of the first of these."""
VERDICTS = """
SELECT count(verify_kind), count(*) FILTER (decision = 'accepted'), sum(len(candidate_tokens)) FILTER (verify_kind IS NOT NULL) FROM spoken
"""
THOUGHTS = "SELECT 'thought' AS role, steps AS length FROM chains WHERE finished"
ANSWERS = "SELECT avg(output_tokens) FROM calls WHERE error_type IS NULL AND list_contains($stages::VARCHAR[], stage)"
CORRELATION = 0.5
"""Assumed correlation of a step's candidates (`SimTextSpec`) where there is but one of each."""
ALIKE = """
WITH logs AS (
    SELECT list_transform(candidate_tokens, lambda tokens: ln(tokens)) AS logs FROM steps
    WHERE len(candidate_tokens) > 1 AND list_min(candidate_tokens) > 0
)
SELECT coalesce(1 - avg(list_var_samp(logs)) / nullif((SELECT var_pop(one) FROM logs, unnest(logs) AS every(one)), 0), 1) FROM logs
HAVING count(*) > 0
"""
"""What of the variance of the logarithms of candidates' lengths is not within steps."""


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
    number. Raises `InputError` where there are none, or none of an engine took time.
    """
    found: dict[str, list[TimedCall]] = {}
    with Query(run) as db:
        for engine, stage, sent_s, took_s, prompt, cached, written, lengths in db.stream(CALLS, calls=max_calls, earlier=ROUNDING_NS):
            found.setdefault(engine, []).append(TimedCall(stage, sent_s, took_s, prompt, cached, written_lengths(lengths, written)))
    if not found:
        raise InputError(str(run), "has no answered call, so there is nothing to calibrate with")
    if timeless := [role for role, calls in found.items() if not any(call.duration_s >= RESOLUTION_S for call in calls)]:
        raise InputError(str(run), f"no call of engine {timeless[0]!r} took time, so there is nothing to calibrate with")
    return found


def undisturbed(calls: Mapping[str, Sequence[TimedCall]]) -> dict[str, Array]:
    """For each call, whether it took time, what it computed is known, and it ended before the last of `calls` was sent: later ones met
    calls that are not among these. Where no call of a role did, all of which it is known, or else all that took time."""
    last = max(call.submit_s for listed in calls.values() for call in listed)
    found = {}
    for role, listed in calls.items():
        took = durations(listed) >= RESOLUTION_S
        known = took & [call.cached_tokens is not None for call in listed]
        ended = known & [call.submit_s + call.duration_s <= last for call in listed]
        found[role] = next((which for which in (ended, known) if which.any()), took)
    return found


def written_lengths(written: Sequence[int], sampled: int) -> tuple[int, ...]:
    """Tokens of each candidate. Those sampled beyond the `written` ones are end-of-sequence tokens, which go to the shortest first."""
    lengths = [max(each, 1) for each in written] or [1]
    for place in np.argsort(lengths, kind="stable")[: max(0, sampled - sum(lengths))]:
        lengths[int(place)] += 1
    return tuple(lengths)


def durations(calls: Sequence[TimedCall]) -> Array:
    """Seconds that each of `calls` took."""
    return np.array([call.duration_s for call in calls])


def read_texts(run: Path, plan: Plan, roles: Iterable[str]) -> dict[str, SimTextSpec]:
    """The simulated texts of `roles` by the run of `plan` in the folder `run`; figures that it does not have of a role are those of another
    one, or the defaults. Raises `InputError` where it cannot be read."""
    drafters = list(plan.drafters)
    answering = [stage.name for stage in plan.stages() if stage.spec.purpose == "answer"]
    with Query(run) as db:
        [(verified, accepted, drafted)] = db.stream(f"{STEPS} {VERDICTS}", drafters=drafters)
        thoughts = _moments(db, THOUGHTS)
        step_tokens = _moments(db, f"{STEPS} SELECT role, tokens AS length FROM written", drafters=drafters)
        answer_tokens, alike = db.scalar(ANSWERS, stages=answering), next(iter(db.stream(ALIKE)), (CORRELATION,))[0]
    correlation = min(max(alike, 0.0), 1.0)
    common: dict[str, Any] = {"step_correlation": round(correlation, 6)}
    for mean, sigma in thoughts.values():
        common |= {"steps_mean": mean, "steps_sigma": min(sigma, 3.0)}
    if answer_tokens is not None:
        common["answer_tokens"] = max(round(answer_tokens), 1)
    texts = {}
    for role in roles:
        own = dict(common)
        if step_tokens:
            mean, sigma = step_tokens.get(role) or next(iter(step_tokens.values()))
            own |= {"step_tokens_mean": max(mean, 1.01), "step_tokens_sigma": min(sigma, 3.0)}
        if verified:
            accuracy = accuracy_for(accepted / verified, drafted / verified, correlation) if role in drafters else 1.0
            own |= {"step_accuracy": accuracy, "verifier_accuracy": 1.0}
        texts[role] = SimTextSpec(**own)
    return texts


def _moments(db: Query, lengths: str, **params: Any) -> dict[str, tuple[float, float]]:
    """The mean of the positive lengths that a query gives, and the standard deviation of their logarithms, by their roles."""
    each = f"SELECT role, avg(length)::DOUBLE, stddev_pop(ln(length)) FROM ({lengths}) WHERE length > 0 GROUP BY role ORDER BY role"
    return {role: (mean, sigma) for role, mean, sigma in db.stream(each, **params)}


def accuracy_for(acceptance: float, candidates: float, correlation: float) -> float:
    """The accuracy of drafted steps at which a faultless verifier finds a right one among `candidates` with the chance `acceptance`.

    It solves for a in 1 - acceptance = c (1 - a) + (1 - c) (1 - a)^N (`SimTextSpec`) by halving.
    """
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        wrong = correlation * (1 - middle) + (1 - correlation) * math.pow(1 - middle, candidates)
        low, high = (middle, high) if wrong > 1 - acceptance else (low, middle)
    return round(high, 6)
