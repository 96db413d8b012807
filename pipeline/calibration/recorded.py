"""The calls of a run as work for a simulated engine: when each came, its tokens, and how long it took. Trace files enter."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from pipeline.analysis.time.timeline import Array
from pipeline.errors import InputError
from pipeline.trace.read import read_batches

ROUNDING_NS = 2
"""A call that comes at the end of an iteration joins the next one; rounded up by a nanosecond it would miss it."""
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


class Recorded(Struct, frozen=True):
    """One answered call."""

    stage: str
    submit_s: float
    """Since the first call of any engine."""
    duration_s: float
    """At the engine, its queue included."""
    input_tokens: int
    cached_tokens: int
    lengths: tuple[int, ...]
    """Tokens sampled for each candidate; a scoring counts as one."""


def read_recorded(run: Path, most: int) -> dict[str, list[Recorded]]:
    """Answered calls of each engine by the time at which they left, from the start up to the moment at which one engine has
    had `most`: until then all of them are there. Raises `InputError` where there are none."""
    rows: list[dict[str, Any]] = []
    for batch in read_batches(run, "calls", COLUMNS):
        rows += (row for row in batch.to_pylist() if row["error_type"] is None)
        if len(rows) > 16 * most:  # rows come in order of their ends: the earliest are among these
            break
    if not rows:
        raise InputError(str(run), "has no answered call: there is nothing to calibrate by")
    rows.sort(key=lambda row: int(row["submit_unix_ns"]))
    start = rows[0]["submit_unix_ns"]
    found: dict[str, list[Recorded]] = {row["engine"]: [] for row in rows}
    for row in rows:
        calls = found[row["engine"]]
        if len(calls) == most:
            break
        calls.append(_recorded(row, start))
    return found


def undisturbed(calls: Mapping[str, Sequence[Recorded]]) -> dict[str, Array]:
    """Of each call, whether it had ended before the last of all left: the others met calls that are not here."""
    last = max(call.submit_s for listed in calls.values() for call in listed)
    ended = {role: np.array([call.submit_s + call.duration_s <= last for call in listed], bool) for role, listed in calls.items()}
    return {role: which if which.any() else ~which for role, which in ended.items()}


def _recorded(row: Mapping[str, Any], start_ns: int) -> Recorded:
    return Recorded(
        row["stage"],
        (row["submit_unix_ns"] - start_ns - ROUNDING_NS) / 1e9,
        row["e2e_latency_s"],
        row["input_tokens"],
        min(row["cached_input_tokens"], row["input_tokens"] - 1),
        _lengths(row["output_token_ids"], row["output_tokens"]),
    )


def _lengths(ids: Sequence[Sequence[int]], sampled: int) -> tuple[int, ...]:
    """Tokens of each candidate; sampled ones that are not among the ids, ends of sequences, go to the shortest first."""
    lengths = [max(len(each), 1) for each in ids] or [1]
    for place in np.argsort(lengths, kind="stable")[: max(0, sampled - sum(lengths))]:
        lengths[int(place)] += 1
    return tuple(lengths)


def durations(calls: Sequence[Recorded]) -> Array:
    """Seconds of each."""
    return np.array([call.duration_s for call in calls])
