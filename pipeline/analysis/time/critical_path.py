"""The critical path of chains: the calls that determined when a chain ended, one after the other. A run folder enters, seconds leave.

The path is found backwards from the chain's end: the call that ended last before it, its time in lane and engine, and from the
moment it was ready the same again. Calls that ran in parallel to the path are not on it.

All chains are followed in one pass backwards in time. For each chain its frontier is held: the instant back to which its path is
known, and the stage of the call that became ready then. Invariant: the time from a frontier to its chain's end is in the totals.
"""

from collections.abc import Callable, Sequence
from math import fsum
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from pipeline.analysis.compiled import compiled
from pipeline.analysis.time.calls import Calls, accumulate, is_long
from pipeline.analysis.time.outline import FINISHED, Outline
from pipeline.analysis.time.timeline import Array

TIMES = ("queue_time_s", "prefill_time_s", "decode_time_s")
SEGMENTS = ("between", "retry", "wait", "queue", "prefill", "decode", "transfer", "engine")
"""The kinds of segments of a path, in the order of the numbers below:

- `between`: from one call's end until the next one was ready, or the chain ended: the orchestrator's own work.
- `retry`: from a failed attempt's end until the call was sent again.
- `wait`: from being ready until the call was sent: in the lane or before a barrier.
- `queue`, `prefill`, `decode`: at the engine, by its own clock.
- `transfer`: in flight by our clock less the three by the engine's: the way there and back, and answers that waited to be read.
- `engine`: the same difference for an engine that does not measure all three.
"""
BETWEEN, RETRY, WAIT, QUEUE, PREFILL, DECODE, TRANSFER, ENGINE = range(8)
END = "(end)"
"""Stands for the stage in the time after a chain's last call."""
NO_STAGE = -1
"""Index of `END` among the stages: the last one."""
SLACK_NS = 2
"""How much later than the next one's ready time a call may end: ready times are differences of rounded numbers."""


class CriticalPath(Struct, frozen=True, kw_only=True):
    """The critical paths of all finished chains of a run, added up."""

    chains: int
    """Number of finished chains."""
    total_s: dict[tuple[str, str], float]
    """Seconds by stage and kind of segment; their sum is the time of all finished chains."""

    @property
    def mean_s(self) -> dict[tuple[str, str], float]:
        """Seconds by stage and kind of segment, of the mean chain."""
        return {key: total / self.chains for key, total in self.total_s.items()}

    @property
    def chain_time_s(self) -> float:
        """Seconds from admission to the end, added up over all finished chains."""
        return fsum(self.total_s.values())


class PathCalls(NamedTuple):
    """What critical paths need of each call, as columns in the order of the calls' ends; as in `calls.Calls`."""

    chain: Array
    stage: Array
    again: Array
    ready: Array
    submit: Array
    end: Array
    queue: Array
    """Nanoseconds in the engine's queue by its clock; -1 where it does not measure them."""
    prefill: Array
    """Nanoseconds of prefill, likewise."""
    decode: Array
    """Nanoseconds of decode, likewise."""


class Frontier(NamedTuple):
    """For each chain, how far back its path is known."""

    at: Array
    """The instant back to which it is known, nanoseconds of work."""
    stage: Array
    """Stage of the call that became ready at that instant; `NO_STAGE` at the chain's end."""


def critical_path(run: Path) -> CriticalPath:
    """The critical paths of the run folder `run`; raises `InputError` when it has no trace that can be read."""
    [accumulator] = accumulate(run, lambda outline: (CriticalPathAccumulator(outline, long=is_long(run)),))
    return accumulator.result()


class CriticalPathAccumulator:
    """Makes a `CriticalPath` of the calls that are added; `long`: compile, see `calls.is_long`. See `Accumulator`."""

    columns: tuple[str, ...] = TIMES

    def __init__(self, outline: Outline, *, long: bool) -> None:
        self._chains = outline.chains
        self._walk: Callable[..., None] = compiled(walk) if long else walk
        self._counts = outline.chains.status == FINISHED
        self._frontier = frontier_of(outline.chains.end)
        self._total = np.zeros((1, len(SEGMENTS)), np.int64)
        self._stages: Sequence[str] = ()

    def add(self, calls: Calls) -> None:
        self._stages = calls.stages
        if more := len(calls.stages) + 1 - len(self._total):
            self._total = np.insert(self._total, -1, np.zeros((more, len(SEGMENTS)), np.int64), axis=0)
        self._walk(tuple(path_calls(calls)), tuple(self._frontier), self._chains.start, self._counts, self._total)

    def result(self) -> CriticalPath:
        """The critical paths, when all calls have been added."""
        total = self._total.copy()
        finish(self._frontier, self._chains.start, self._counts, total)
        names = [*self._stages, END]
        places = zip(*np.nonzero(total), strict=True)
        found = {(names[stage], SEGMENTS[segment]): float(total[stage, segment] / 1e9) for stage, segment in places}
        return CriticalPath(chains=int(self._counts.sum()), total_s=found)


def frontier_of(ends: Array) -> Frontier:
    """The frontier before any call: at the chains' `ends`."""
    return Frontier(ends.copy(), np.full(len(ends), NO_STAGE, np.int32))


def path_calls(calls: Calls) -> PathCalls:
    """The columns of `calls` that critical paths need."""
    own = (np.rint(np.nan_to_num(calls.seconds(name), nan=-1e-9) * 1e9).astype(np.int64) for name in TIMES)
    return PathCalls(calls.chain, calls.stage, calls.again, calls.ready, calls.submit, calls.end, *own)


def walk(calls: tuple[Array, ...], frontier: tuple[Array, ...], start: Array, counts: Array, total: Array) -> None:
    """Move the frontiers back over `calls`, which are the columns of `PathCalls`, and add the time they pass to `total`.

    `total` is in nanoseconds, by stage and segment. Only chains that `counts` marks are followed, none beyond its `start`.
    """
    # Taken out once: numba counts references to arrays that it takes out of tuples.
    of_chain, of_stage, again, readies, submits, ends, queues, prefills, decodes = calls
    at, after = frontier
    for row in range(len(ends) - 1, -1, -1):
        chain, stage, ready = of_chain[row], of_stage[row], readies[row]
        if not counts[chain] or ends[row] > at[chain] + SLACK_NS or ready < start[chain]:
            continue
        until = min(ends[row], at[chain])
        submit = min(submits[row], until)
        total[after[chain], BETWEEN] += at[chain] - until
        left = until - submit
        queue = min(max(queues[row], 0), left)
        prefill = min(max(prefills[row], 0), left - queue)
        decode = min(max(decodes[row], 0), left - queue - prefill)
        knows = min(queues[row], prefills[row], decodes[row]) >= 0
        total[stage, RETRY if again[row] else WAIT] += submit - min(ready, until)
        total[stage, QUEUE] += queue
        total[stage, PREFILL] += prefill
        total[stage, DECODE] += decode
        total[stage, TRANSFER if knows else ENGINE] += left - queue - prefill - decode
        at[chain], after[chain] = min(ready, until), stage


def finish(frontier: Frontier, start: Array, counts: Array, total: Array) -> None:
    """Add to `total` the time between the chains' starts and their frontiers, as `between`."""
    np.add.at(total[:, BETWEEN], frontier.stage, (frontier.at - start) * counts)
