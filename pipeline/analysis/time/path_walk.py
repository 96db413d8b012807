"""The paths of all chains in one pass, backwards in time: calls enter in chunks, the last ones first; nanoseconds leave.

Of each chain its frontier is held: the moment back to which its path is known. The plain way and the compiled one do the same.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.analysis.compiled import compiled
from pipeline.analysis.time.timeline import Array

BETWEEN, RETRY, WAIT, QUEUE, PREFILL, DECODE, TRANSFER, ENGINE = range(8)
END = -1
"""The stage of what follows a chain's last call."""
SLACK_NS = 2
"""A call may end so much after the next one was ready: that time is known as a difference, from rounded parts."""


class Steps(NamedTuple):
    """Calls in the order of their ends."""

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


NO_STEPS = Steps(*(np.empty(0, np.bool_ if name == "again" else np.int64) for name in Steps._fields))


class Frontier(NamedTuple):
    """By chain: how far back its path is known."""

    at: Array
    stage: Array
    """Of the call that is ready there; `END` for none."""


def frontier_of(ends: Array) -> Frontier:
    """At the ends of all chains."""
    return Frontier(ends.copy(), np.full(len(ends), END, np.int32))


Part = tuple[int, int, int]
"""Stage, segment, nanoseconds."""


def plain_path(start: int, end: int, calls: Sequence[tuple[int, ...]]) -> list[Part]:
    """The path of one chain from its end back to its start; `calls` are rows of `Steps`, without the chain, ordered by their ends."""
    parts: list[Part] = []
    frontier, after = end, END
    for stage, again, ready, submit, ended, *known in reversed(calls):
        if ended <= frontier + SLACK_NS and start <= ready:
            until = min(ended, frontier)
            parts.append((after, BETWEEN, frontier - until))
            parts += [(stage, segment, length) for segment, length in _inside(until - min(submit, until), known)[::-1]]
            parts.append((stage, RETRY if again else WAIT, min(submit, until) - min(ready, until)))
            frontier, after = min(ready, until), stage
    return [*parts, (after, BETWEEN, frontier - start)]


def _inside(length: int, known: Sequence[int]) -> list[tuple[int, int]]:
    """Segments of a call's time at its engine."""
    parts, left = [], length
    for segment, own in zip((QUEUE, PREFILL, DECODE), known, strict=True):
        parts.append((segment, min(max(own, 0), left)))
        left -= parts[-1][1]
    return [*parts, (ENGINE if min(known) < 0 else TRANSFER, left)]


def plain_totals(steps: Steps, start: Array, end: Array, counts: Array, stages: int) -> Array:
    """Nanoseconds by stage, `END` last, and segment, of the chains that `counts` marks."""
    total = np.zeros((stages + 1, 8), np.int64)
    order = np.argsort(steps.chain, kind="stable")
    cuts = np.searchsorted(steps.chain[order], np.arange(len(start) + 1))
    for chain in np.flatnonzero(counts):
        mine = order[cuts[chain] : cuts[chain + 1]]
        rows = list(zip(*(column[mine].tolist() for column in steps[1:]), strict=True))
        for stage, segment, length in plain_path(int(start[chain]), int(end[chain]), rows):
            total[stage, segment] += length
    return total


@compiled
def walk(steps: tuple[Array, ...], frontier: tuple[Array, ...], start: Array, counts: Array, total: Array) -> None:
    """Add to `total`, of the chains that `counts` marks, what lies between their frontiers and the first of `steps`."""
    # Taken out once: numba counts references to arrays that it takes out of tuples.
    of_chain, of_stage, again, readies, submits, ends, queues, prefills, decodes = steps
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
