"""Busy time and overlap of engines: the calls table of a run folder enters, seconds of each engine and stage leave.

Only five columns are read, as arrays of 28 bytes a call, and never of all calls at once. An engine is busy while at
least one request is in flight to it; each replica has its own engines. Nothing is written.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.store.read import read_batches

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

NO_REPLICA = -1
"""Stands for the number of a replica where a row has none."""
CHUNK = 1 << 18
"""Calls that are held together."""


class EngineTime(Struct, frozen=True):
    """One engine over the span of the run; of a run with several replicas the mean of its engines of this role, but for the requests."""

    busy_s: float
    """Seconds in which at least one request was in flight."""
    busy_share: float
    """`busy_s` over the span, 0 to 1."""
    mean_in_flight: float
    """Requests in flight, averaged over the span; of several replicas those of all."""


class StageTime(Struct, frozen=True):
    """One stage over the span of the run."""

    calls: int
    in_flight_s: float
    """Seconds that its requests were in flight, added up over the requests."""


class ReplicaTime(Struct, frozen=True):
    """One of several replicas."""

    busy_s: dict[str, float]
    """Seconds in which at least one request was in flight, by role."""
    overlap_s: float
    """Seconds in which two or more of its engines were busy."""
    active: tuple[Array, Array]
    """Starts and ends, ns UTC, of the times in which at least one of its engines was busy: disjoint and in order."""


class Timeline(Struct, frozen=True):
    """Busy time, overlap and time in flight of a run."""

    span_s: float
    """Seconds from the first request that was sent until the last that ended, without pauses between sessions."""
    engines: dict[str, EngineTime]
    """By role."""
    overlap_s: float
    """Seconds in which two or more engines were busy; of several replicas the mean of each one's seconds with its own engines."""
    overlap_share: float
    """`overlap_s` over the span, 0 to 1."""
    stages: dict[str, StageTime]
    """By the stage's name."""
    replicas: dict[int, ReplicaTime] = {}
    """Of a run with several replicas each one alone, by its number; else empty."""


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
    replica: "Array | None" = None
    """The number of the replica of each call, `NO_REPLICA` for none; None where none of these calls has one."""


Pauses: TypeAlias = Sequence[tuple[int, int]]
"""Start and end, ns UTC, of the times between the sessions of a run."""


def timeline(run: Path, pauses: Pauses = (), replicas: Collection[int] = ()) -> Timeline:
    """The timeline of the run folder `run`; raises `InputError` when that has no trace that can be read.

    `replicas` are the numbers of those that were started; others that calls name are added.
    """
    totals = TimelineTotals(replicas)
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

    def __init__(self, replicas: Collection[int] = ()) -> None:
        self._engines: Sequence[str] = ()
        self._stages: Sequence[str] = ()
        self._replicas = set(replicas)
        self._units: dict[tuple[int, int], int] = {}
        """Each engine that is busy by itself: the number of a replica and the index of its role; in the order of `_blocks`."""
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
        owners = [self._units_of(calls), *(np.full(len(block[0]), number, np.int32) for number, block in enumerate(self._blocks))]
        submit, end, unit = (np.concatenate(column) for column in (starts, ends, owners))
        self._blocks = merged(submit, end, unit, len(self._units))

    def _units_of(self, calls: Intervals) -> Array:
        """For each call the number of its engine in `_units`; new ones are added."""
        if calls.replica is None or (calls.replica == NO_REPLICA).all():
            pairs, codes = [(NO_REPLICA, engine) for engine in range(len(calls.engines))], calls.engine
        else:
            found, codes = np.unique(calls.replica.astype(np.int64) << 8 | calls.engine, return_inverse=True)
            pairs = list(zip((found >> 8).tolist(), (found & 0xFF).tolist(), strict=True))
        return np.array([self._units.setdefault(pair, len(self._units)) for pair in pairs], np.int32)[codes]

    def timeline(self, pauses: Pauses = ()) -> Timeline:
        """The timeline of the calls that were added."""
        edges = [(starts[0], ends[-1]) for starts, ends in self._blocks if len(starts)]
        span_s = worked_s(int(min(first for first, _ in edges)), int(max(last for _, last in edges)), pauses) if edges else 0.0
        share = 1 / span_s if span_s else 0.0
        numbers = sorted((self._replicas | {number for number, _ in self._units}) - {NO_REPLICA}) or [NO_REPLICA]
        replicas = {number: self._replica(number) for number in numbers}
        busy = {name: sum(each.busy_s[name] for each in replicas.values()) / len(replicas) for name in self._engines}
        overlap_s = sum(each.overlap_s for each in replicas.values()) / len(replicas)
        return Timeline(
            span_s,
            {name: EngineTime(busy[name], busy[name] * share, float(self._flight_s[e]) * share) for e, name in enumerate(self._engines)},
            overlap_s,
            overlap_s * share,
            {name: StageTime(int(self._stage_calls[s]), float(self._stage_s[s])) for s, name in enumerate(self._stages)},
            replicas if len(replicas) > 1 else {},
        )

    def _replica(self, number: int) -> ReplicaTime:
        """The times of one replica, or of the one process of a run."""
        nothing = np.empty(0, np.int64), np.empty(0, np.int64)
        places = [self._units.get((number, engine)) for engine in range(len(self._engines))]
        blocks = [nothing if place is None else self._blocks[place] for place in places]
        busy_s = {name: float((ends - starts).sum()) / 1e9 for name, (starts, ends) in zip(self._engines, blocks, strict=True)}
        starts, ends = (np.concatenate([np.empty(0, np.int64), *(block[side] for block in blocks)]) for side in (0, 1))
        [active] = merged(starts, ends, np.zeros(len(starts), np.int32), 1)
        return ReplicaTime(busy_s, _overlap_ns(blocks) / 1e9, active)


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
    for batch in read_batches(run, "calls", ["engine", "stage", "submit_unix_ns", "end_unix_ns"], ["replica"]):
        submit, end = (batch.column(name).to_numpy() for name in ("submit_unix_ns", "end_unix_ns"))
        codes = engines.codes(batch.column("engine")), stages.codes(batch.column("stage"))
        parts.append((*codes, submit, np.maximum(submit, end), replicas_of(batch)))
        if sum(len(part[0]) for part in parts) >= CHUNK:
            yield _joined(engines, stages, parts)
            parts = []
    if parts:
        yield _joined(engines, stages, parts)


def _joined(engines: "Names", stages: "Names", parts: Sequence[tuple[Array, ...]]) -> Intervals:
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Intervals(list(engines), list(stages), *columns)


def replicas_of(rows: Any) -> Array:
    """The number of each row's replica, `NO_REPLICA` where it has none; `rows` is a table or batch of calls or chains, with a column
    `replica` unless an earlier version wrote it."""
    if "replica" not in rows.schema.names:
        return np.full(rows.num_rows, NO_REPLICA, np.int32)
    return np.asarray(pc.fill_null(rows.column("replica"), NO_REPLICA).to_numpy(zero_copy_only=False).astype(np.int32))


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
    order = order[np.argsort(engine[order], kind="stable")]
    submit, end = submit[order], end[order]
    cuts = np.searchsorted(engine[order], np.arange(engines + 1)).tolist()
    blocks = []
    for since, until in pairwise(cuts):
        starts, latest = submit[since:until], np.maximum.accumulate(end[since:until])
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
