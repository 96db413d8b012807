"""What a chain's time went on: the calls that determined when it ended, one after the other, by stage and part of the call.

A run folder enters, seconds leave. The path is found backwards from the chain's end: the call that ended last before it,
its way through lane and engine, and from the moment it was ready the same again. Calls beside the path are not on it.

All chains are walked in one pass backwards in time. Of each chain its frontier is held: the moment back to which its path is
known, and the stage of the call that is ready there.
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
"""What a segment of a path is, in the order of the numbers below:

- `between`: from one call's end until the next one was ready, or the chain ended: the orchestrator's own work.
- `retry`: from a failed attempt's end until the call was sent again.
- `wait`: ready, in the lane or before a barrier.
- `queue`, `prefill`, `decode`: at the engine, by its own clock.
- `transfer`: at the engine by our clock and not by its own: the way there and back, and answers that waited to be read.
- `engine`: at an engine that does not know the three; all of it, or what the known ones leave.
"""
BETWEEN, RETRY, WAIT, QUEUE, PREFILL, DECODE, TRANSFER, ENGINE = range(8)
END = "(end)"
"""The stage of what follows a chain's last call."""
NO_STAGE = -1
"""Its place: the last one."""
SLACK_NS = 2
"""A call may end so much after the next one was ready: that time is known as a difference, from rounded parts."""


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


class PathCalls(NamedTuple):
    """Calls in the order of their ends, as a path is made of them."""

    chain: Array
    stage: Array
    again: Array
    ready: Array
    submit: Array
    end: Array
    queue: Array
    """Nanoseconds by the engine's clock, -1 where it does not know, as are the two below."""
    prefill: Array
    decode: Array


class Frontier(NamedTuple):
    """By chain: how far back its path is known."""

    at: Array
    stage: Array
    """Of the call that is ready there; `NO_STAGE` for none."""


def critical_path(run: Path) -> CriticalPath:
    """The paths of the run folder's finished chains; raises `InputError` when it has no trace that can be read."""
    [accumulator] = accumulate(run, lambda outline: (CriticalPathAccumulator(outline, long=is_long(run)),))
    return accumulator.result()


class CriticalPathAccumulator:
    """Adds up the paths of all chains; `long`: there are so many calls that compiling pays."""

    columns: tuple[str, ...] = TIMES

    def __init__(self, outline: Outline, *, long: bool) -> None:
        self._chains = outline.chains
        self._walk: Callable[..., None] = compiled(walk) if long else walk
        self._counts = outline.chains.status == FINISHED
        self._frontier = frontier_of(outline.chains.end)
        self._total = np.zeros((1, len(SEGMENTS)), np.int64)
        self._stages: Sequence[str] = ()

    def add(self, calls: Calls) -> None:
        """Take some calls, which ended before those that came so far."""
        self._stages = calls.stages
        if more := len(calls.stages) + 1 - len(self._total):
            self._total = np.insert(self._total, -1, np.zeros((more, len(SEGMENTS)), np.int64), axis=0)
        self._walk(tuple(path_calls(calls)), tuple(self._frontier), self._chains.start, self._counts, self._total)

    def result(self) -> CriticalPath:
        """What all calls come to."""
        total = self._total.copy()
        finish(self._frontier, self._chains.start, self._counts, total)
        names = [*self._stages, END]
        places = zip(*np.nonzero(total), strict=True)
        found = {(names[stage], SEGMENTS[segment]): float(total[stage, segment] / 1e9) for stage, segment in places}
        return CriticalPath(chains=int(self._counts.sum()), total_s=found)


def frontier_of(ends: Array) -> Frontier:
    """At the ends of all chains."""
    return Frontier(ends.copy(), np.full(len(ends), NO_STAGE, np.int32))


def path_calls(calls: Calls) -> PathCalls:
    """What paths are made of."""
    own = (np.rint(np.nan_to_num(calls.seconds(name), nan=-1e-9) * 1e9).astype(np.int64) for name in TIMES)
    return PathCalls(calls.chain, calls.stage, calls.again, calls.ready, calls.submit, calls.end, *own)


def walk(calls: tuple[Array, ...], frontier: tuple[Array, ...], start: Array, counts: Array, total: Array) -> None:
    """Add to `total`, of the chains that `counts` marks, what lies between their frontiers and the first of `calls`."""
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
    """Add what lies between the chains' starts and their frontiers."""
    np.add.at(total[:, BETWEEN], frontier.stage, (frontier.at - start) * counts)
