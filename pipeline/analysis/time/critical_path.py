"""What a chain's time went on: the calls that determined when it ended, one after the other, by stage and part of the call.

A run folder enters, seconds leave. The path is found backwards from the chain's end: the call that ended last before it,
its way through lane and engine, and from the moment it was ready the same again. Calls beside the path are not on it.
"""

from collections.abc import Iterator, Sequence
from math import fsum
from pathlib import Path

import numpy as np
import pyarrow as pa
from msgspec import Struct

from pipeline.analysis.time.calls import Calls, is_long, observe
from pipeline.analysis.time.outline import FINISHED, Outline
from pipeline.analysis.time.path_walk import NO_STEPS, Steps, finish, frontier_of, plain_path, plain_totals, walk

TIMES = ("queue_time_s", "prefill_time_s", "decode_time_s")
SEGMENTS = ("between", "retry", "wait", "queue", "prefill", "decode", "transfer", "engine")
"""What a stretch of a path is:

- `between`: from one call's end until the next one was ready, or the chain ended: the orchestrator's own work.
- `retry`: from a failed attempt's end until the call was sent again.
- `wait`: ready, in the lane or before a barrier.
- `queue`, `prefill`, `decode`: at the engine, by its own clock.
- `transfer`: at the engine by our clock and not by its own: the way there and back, and answers that waited to be read.
- `engine`: at an engine that does not know the three; all of it, or what the known ones leave.
"""
END = "(end)"
"""The stage of what follows a chain's last call."""


class PathSegment(Struct, frozen=True):
    """One stretch of a chain's path."""

    stage: str
    """Of the call that it belongs to or leads to, or `END`."""
    segment: str
    """One of `SEGMENTS`."""
    engine: str
    """The role; empty for `END`."""
    start_s: float
    """Seconds since the chain's start."""
    end_s: float


class CriticalPath(Struct, frozen=True, kw_only=True):
    """Paths of all finished chains, added up."""

    chains: int
    """Finished ones."""
    total_s: dict[tuple[str, str], float]
    """By stage and segment; all together the time of all finished chains."""

    @property
    def mean_s(self) -> dict[tuple[str, str], float]:
        """The same for the mean chain."""
        return {key: total / self.chains for key, total in self.total_s.items()}

    @property
    def chain_time_s(self) -> float:
        """Seconds of all finished chains."""
        return fsum(self.total_s.values())


def critical_path(run: Path) -> CriticalPath:
    """The paths of the run folder's finished chains; raises `InputError` when it has no trace that can be read."""
    [walker] = observe(run, lambda outline: (Walker(outline, fast=is_long(run)),))
    return walker.critical_path()


def chain_path(run: Path, chain_id: str) -> tuple[PathSegment, ...]:
    """The path of one chain, finished or not, from its start on; empty for one that is not there. Raises `InputError`."""
    return chain_paths(run, [chain_id]).get(chain_id, ())


def chain_paths(run: Path, chain_ids: Sequence[str]) -> dict[str, tuple[PathSegment, ...]]:
    """The paths of several chains, those that are there, from one reading of the trace."""
    [finder] = observe(run, lambda outline: (_Finder(outline, chain_ids),))
    return finder.paths()


class Walker:
    """Looks at calls; a plain way for few of them, a compiled one for many."""

    columns: tuple[str, ...] = TIMES

    def __init__(self, outline: Outline, *, fast: bool) -> None:
        self._chains, self._fast = outline.chains, fast
        self._counts = outline.chains.status == FINISHED
        self._frontier = frontier_of(outline.chains.end)
        self._total = np.zeros((1, len(SEGMENTS)), np.int64)
        self._stages: Sequence[str] = ()
        self._steps: list[Steps] = []

    def add(self, calls: Calls) -> None:
        """Look at some calls, which ended before those that came so far."""
        self._stages = calls.stages
        if not self._fast:
            self._steps.insert(0, steps_of(calls))
            return
        if more := len(calls.stages) + 1 - len(self._total):
            self._total = np.insert(self._total, -1, np.zeros((more, len(SEGMENTS)), np.int64), axis=0)
        walk(tuple(steps_of(calls)), tuple(self._frontier), self._chains.start, self._counts, self._total)

    def critical_path(self) -> CriticalPath:
        """What the calls so far come to."""
        chains = self._chains
        if self._fast:
            total = self._total.copy()
            finish(self._frontier, chains.start, self._counts, total)
        else:
            steps = Steps(*(np.concatenate(column) for column in zip(NO_STEPS, *self._steps, strict=True)))
            total = plain_totals(steps, chains.start, chains.end, self._counts, len(self._stages))
        names = [*self._stages, END]
        places = zip(*np.nonzero(total), strict=True)
        found = {(names[stage], SEGMENTS[segment]): float(total[stage, segment] / 1e9) for stage, segment in places}
        return CriticalPath(chains=int(self._counts.sum()), total_s=found)


class _Finder:
    """Looks for the calls of a few chains."""

    columns: tuple[str, ...] = TIMES

    def __init__(self, outline: Outline, chain_ids: Sequence[str]) -> None:
        self._outline = outline
        self._places = dict(zip(chain_ids, outline.chains.places(pa.array(chain_ids, pa.string())).tolist(), strict=True))
        self._stages: Sequence[str] = ()
        self._roles: dict[str, str] = {}
        self._rows: dict[int, list[tuple[int, ...]]] = {}

    def add(self, calls: Calls) -> None:
        """Look at some calls, which ended before those that came so far."""
        self._stages = calls.stages
        mine = np.isin(calls.chain, list(self._places.values()))
        engines = calls.engine[mine].tolist()
        rows = zip(engines, *(column[mine].tolist() for column in steps_of(calls)), strict=True)
        for engine, chain, stage, *row in reversed(list(rows)):
            self._roles[calls.stages[stage]] = self._outline.engines[engine]
            self._rows.setdefault(chain, []).append((stage, *row))

    def paths(self) -> dict[str, tuple[PathSegment, ...]]:
        """The paths of the chains that are there."""
        return {name: tuple(self._path(place)) for name, place in self._places.items() if place >= 0}

    def _path(self, chain: int) -> Iterator[PathSegment]:
        chains, at = self._outline.chains, 0
        start, end = int(chains.start[chain]), int(chains.end[chain])
        for stage, segment, length in reversed(plain_path(start, end, self._rows.get(chain, [])[::-1])):
            if length:
                name = self._stages[stage] if stage >= 0 else END
                yield PathSegment(name, SEGMENTS[segment], self._roles.get(name, ""), at / 1e9, (at + length) / 1e9)
            at += length


def steps_of(calls: Calls) -> Steps:
    """What a path is made of."""
    own = (np.rint(np.nan_to_num(calls.seconds(name), nan=-1e-9) * 1e9).astype(np.int64) for name in TIMES)
    return Steps(calls.chain, calls.stage, calls.again, calls.ready, calls.submit, calls.end, *own)
