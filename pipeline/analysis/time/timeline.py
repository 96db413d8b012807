"""Busy time and overlap of engines: the calls table of a run folder enters, seconds of each engine and stage leave.

Only four columns are read, as arrays of 24 bytes a call, and never of all calls at once. An engine is busy while at
least one request is in flight to it. Nothing is written.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct

from pipeline.trace.read import read_batches

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

CHUNK = 1 << 18
"""Calls that are held together."""


class EngineTime(Struct, frozen=True):
    """One engine over the span of the run."""

    busy_s: float
    """Seconds in which at least one request was in flight."""
    busy_share: float
    """`busy_s` over the span, 0 to 1."""
    mean_in_flight: float
    """Requests in flight, averaged over the span."""


class StageTime(Struct, frozen=True):
    """One stage over the span of the run."""

    calls: int
    in_flight_s: float
    """Seconds that its requests were in flight, added up over the requests."""


class Timeline(Struct, frozen=True):
    """Busy time, overlap and time in flight of a run."""

    span_s: float
    """Seconds from the first request that was sent until the last that ended, without pauses between sessions."""
    engines: dict[str, EngineTime]
    """By role."""
    overlap_s: float
    """Seconds in which two or more engines were busy."""
    overlap_share: float
    """`overlap_s` over the span, 0 to 1."""
    stages: dict[str, StageTime]
    """By the stage's name."""


class Intervals(Struct, frozen=True):
    """What the timeline needs of each call, as columns of equal length."""

    engines: Sequence[str]
    stages: Sequence[str]
    engine: Array
    """Indices into `engines`."""
    stage: Array
    """Indices into `stages`."""
    submit: Array
    """When each call was sent, ns UTC, int64."""
    end: Array
    """When each call ended, ns UTC, int64; not before `submit`."""


Pauses: TypeAlias = Sequence[tuple[int, int]]
"""Start and end, ns UTC, of the times between the sessions of a run."""


def timeline(run: Path, pauses: Pauses = ()) -> Timeline:
    """The timeline of the run folder `run`; raises `InputError` when that has no trace that can be read."""
    totals = TimelineTotals()
    for calls in read_chunks(run):
        totals.add(calls)
    return totals.timeline(pauses)


def measure(calls: Intervals, pauses: Pauses = ()) -> Timeline:
    """The timeline of `calls`."""
    totals = TimelineTotals()
    totals.add(calls)
    return totals.timeline(pauses)


class TimelineTotals:
    """Makes a `Timeline` of calls that are added in chunks and in any order; it holds only merged busy intervals and sums."""

    def __init__(self) -> None:
        self._engines: Sequence[str] = ()
        self._stages: Sequence[str] = ()
        self._blocks: list[tuple[Array, Array]] = []
        self._flight_s, self._stage_s, self._stage_calls = np.empty(0), np.empty(0), np.empty(0, np.int64)

    def add(self, calls: Intervals) -> None:
        """Add `calls`; their lists of names must begin with those of the calls that were added before."""
        self._engines, self._stages = calls.engines, calls.stages
        duration = (calls.end - calls.submit) / 1e9
        self._flight_s = _sum(self._flight_s, np.bincount(calls.engine, duration, len(calls.engines)))
        self._stage_s = _sum(self._stage_s, np.bincount(calls.stage, duration, len(calls.stages)))
        self._stage_calls = _sum(self._stage_calls, np.bincount(calls.stage, minlength=len(calls.stages)))
        starts, ends = ([calls.submit, *(block[side] for block in self._blocks)] for side in (0, 1))
        ends[0] = calls.end
        owners = [calls.engine, *(np.full(len(block[0]), number, np.int32) for number, block in enumerate(self._blocks))]
        submit, end, engine = (np.concatenate(column) for column in (starts, ends, owners))
        self._blocks = merged(submit, end, engine, len(calls.engines))

    def timeline(self, pauses: Pauses = ()) -> Timeline:
        """The timeline of the calls that were added."""
        edges = [(starts[0], ends[-1]) for starts, ends in self._blocks if len(starts)]
        span_s = worked_s(int(min(first for first, _ in edges)), int(max(last for _, last in edges)), pauses) if edges else 0.0
        share = 1 / span_s if span_s else 0.0
        busy = [float((ends - starts).sum()) / 1e9 for starts, ends in self._blocks]
        overlap_s = _overlap_ns(self._blocks) / 1e9
        return Timeline(
            span_s,
            {name: EngineTime(busy[e], busy[e] * share, float(self._flight_s[e]) * share) for e, name in enumerate(self._engines)},
            overlap_s,
            overlap_s * share,
            {name: StageTime(int(self._stage_calls[s]), float(self._stage_s[s])) for s, name in enumerate(self._stages)},
        )


def worked_s(start: int, end: int, pauses: Pauses) -> float:
    """Seconds from `start` to `end`, ns UTC, without the pauses that lie between."""
    return (end - start - sum(max(0, min(end, until) - max(start, since)) for since, until in pauses)) / 1e9


def _sum(so_far: Array, more: Array) -> Array:
    """The sum of two arrays, of which `more` is at least as long as `so_far`."""
    return np.asarray(np.pad(so_far, (0, len(more) - len(so_far))) + more)


def read_chunks(run: Path) -> Iterator[Intervals]:
    """The calls of the run folder `run`, those that failed included, `CHUNK` or a few more at a time; raises `InputError`."""
    engines, stages = Names(), Names()
    parts: list[tuple[Array, ...]] = []
    for batch in read_batches(run, "calls", ["engine", "stage", "submit_unix_ns", "end_unix_ns"]):
        submit, end = (batch.column(name).to_numpy() for name in ("submit_unix_ns", "end_unix_ns"))
        parts.append((engines.codes(batch.column("engine")), stages.codes(batch.column("stage")), submit, np.maximum(submit, end)))
        if sum(len(part[0]) for part in parts) >= CHUNK:
            yield _joined(engines, stages, parts)
            parts = []
    if parts:
        yield _joined(engines, stages, parts)


def _joined(engines: "Names", stages: "Names", parts: Sequence[tuple[Array, ...]]) -> Intervals:
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Intervals(list(engines), list(stages), *columns)


class Names(dict[str, int]):
    """Numbers strings from 0, in the order in which it meets them: a dict from strings to their numbers."""

    def codes(self, column: pa.Array) -> Array:
        """The number of each string in `column`; new ones are added, and null counts as the empty string."""
        column = column.fill_null("") if column.null_count else column
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        places = [self.setdefault(name, len(self)) for name in coded.dictionary.to_pylist()]
        return np.asarray(np.array(places, np.int32)[coded.indices.to_numpy()])


def merged(submit: Array, end: Array, engine: Array, engines: int) -> list[tuple[Array, Array]]:
    """For each engine the starts and ends of its busy intervals: the calls' intervals merged, disjoint and in order."""
    order = np.argsort(submit, kind="stable")
    submit, end, engine = submit[order], end[order], engine[order]
    blocks = []
    for number in range(engines):
        mine = engine == number
        starts, latest = submit[mine], np.maximum.accumulate(end[mine])
        first = np.ones(len(starts), bool)
        first[1:] = starts[1:] > latest[:-1]
        blocks.append((starts[first], latest[np.roll(first, -1)]))
    return blocks


def _overlap_ns(blocks: Sequence[tuple[Array, Array]]) -> int:
    times = np.concatenate([side for block in blocks for side in block] or [np.empty(0, np.int64)])
    steps = np.concatenate([sign for starts, _ in blocks for sign in (np.ones(len(starts), int), -np.ones(len(starts), int))] or [times])
    order = np.argsort(times, kind="stable")
    busy = np.cumsum(steps[order])[:-1]
    return int(np.diff(times[order])[busy >= 2].sum())
