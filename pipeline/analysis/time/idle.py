"""What each engine and device was busy with or idle for, in bins: chains and calls as columns enter, nanoseconds by cause leave.

At any instant the first cause that holds counts. So with the spans of time in which each cause holds, the first one first, the time of a
cause is by how much its spans lengthen the union of those before it. No instant counts twice, and all of them make up the bin.

An example: one chain, from 0 to 10; a call of it to engine d (ready 0, sent 1, ended 4), then two to engine t (ready 5, sent 5, ended 8;
ready 8, sent 9, ended 10):

    t busy             5-8 9-10
    t has a call       8-9          orchestration
    t is next          4-5          orchestration
    else               0-4          another engine

    t: 4 busy, 2 orchestration, 4 other engine. d: 3 busy, 1 orchestration (0-1), 6 other engine.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipeline.analysis.arrays import Array
from pipeline.analysis.time.spans import NONE, Spans, gaps, open_time, together, union, while_open
from pipeline.analysis.time.work import OPEN, PIECE, SLACK_NS, Calls, Lives, pieces

NOTHING_ADMITTED, RECOVERY, BARRIER, ORCHESTRATION, TAIL, OTHER_ENGINE, BUSY = range(7)
"""What an engine's time is spent on: a cause of idleness, see `occupancy.CAUSES`, or being busy."""
LIVE, OVERLAP, BY_ENGINE = range(3)
"""Rows of the sums: chains that live; time in which two or more engines are busy; from the third row on calls in flight by engine, calls
that wait by engine, and for each group of engines seven rows of what its time is spent on."""
EARLY = -1
"""Before every instant."""


class IdleRules(NamedTuple):
    """The bins and engines to measure, and what decides on causes of idleness."""

    edges: Array
    """Edges of the bins."""
    engines: int
    """The number of engines, below 63."""
    groups: Array
    """Sets of engines as bit masks: first each engine alone, in order, then the engines of each shared device."""
    lockstep: bool
    """True if the run's schedule was `lockstep`."""
    full: int
    """The number of chains that may live at once."""
    last_admission: int
    """When the last chain started, of several replicas on this one."""
    last_end: int = EARLY
    """Of one of several replicas: when the last chain of all ended. Until then and since the last admission a replica without chains is in
    the tail."""


def occupancy_sums(rules: IdleRules, chains: Lives, calls: Calls, piece: int = PIECE) -> Array:
    """Nanoseconds in each bin, a row for each quantity: see `LIVE`. `piece`: see `pieces`."""
    lives, flying, waiting, held = Spans(chains.start, chains.end), list[Spans](), list[Spans](), list[Spans]()
    for engine in range(rules.engines):
        mine = calls.engine == engine
        ready, submit, again = calls.ready[mine], calls.submit[mine], calls.again[mine]
        flying.append(Spans(submit, calls.end[mine]))
        waiting.append(Spans(ready, submit))
        held.append(union(Spans(ready[again], submit[again])))
    busy, due = list(map(union, flying)), list(map(union, waiting))
    coming = [union(*each) for each in zip(*(_coming(rules.engines, *some) for some in pieces(chains, calls, piece)), strict=True)]
    overlap = while_open(together(*busy), 2, rules.engines)
    rows = [open_time(each, rules.edges) for each in (lives, overlap, *flying, *waiting)]
    first, last = int(rules.edges[0]), int(rules.edges[-1])
    always = gaps(NONE, first, last)
    dead = gaps(union(lives), first, last)
    few = while_open(lives, 1, rules.full - 1).within(rules.last_admission, last)
    for group in rules.groups.tolist():
        engines = [engine for engine in range(rules.engines) if group >> engine & 1]
        causes = [
            (BUSY, [busy[each] for each in engines]),
            (TAIL, [dead.within(rules.last_admission, rules.last_end)]),
            (NOTHING_ADMITTED, [dead]),
            (RECOVERY, [held[each] for each in engines]),
            (BARRIER if rules.lockstep else ORCHESTRATION, [due[each] for each in engines]),
            (ORCHESTRATION, [coming[each] for each in engines]),
            (TAIL, [few]),
            (OTHER_ENGINE, [always]),
        ]
        rows.extend(_by_cause(causes, rules.edges))
    return np.array(rows)


def _by_cause(causes: Sequence[tuple[int, Sequence[Spans]]], edges: Array) -> Array:
    """The time of each cause in each bin; the first one that holds counts."""
    spent = np.zeros((7, len(edges) - 1), np.int64)
    so_far, before = NONE, np.zeros(len(edges) - 1, np.int64)
    for cause, spans in causes:
        so_far = union(so_far, *spans)
        spent[cause] -= before
        before = open_time(so_far, edges)
        spent[cause] += before
    return spent


def _coming(engines: int, chains: Lives, calls: Calls) -> list[Spans]:
    """For each engine when any chain is between its calls and one of the next is for it.

    A chain that has made its last call and has not ended holds up every engine; of one without a row it is not known what it does then.
    """
    order = np.argsort(calls.ready, kind="stable")
    order = order[np.argsort(calls.chain[order], kind="stable")]
    chain, ready = calls.chain[order].astype(np.int64), calls.ready[order]
    # The end of a chain's calls so far is that of the one with the greatest place, as calls are in the order of their ends.
    until = calls.end[np.maximum.accumulate(chain * len(order) + order) - chain * len(order)]
    new, last = np.diff(chain, prepend=-1) != 0, np.flatnonzero(np.diff(chain, append=-1))
    since = np.where(new, EARLY, np.roll(until, 1))
    begins = new | (ready > since)
    first, gap = np.flatnonzero(begins), np.cumsum(begins) - 1
    of_chain = chain[first]
    between = Spans(np.maximum(since[first], chains.start[of_chain]), np.minimum(ready[first], chains.end[of_chain]))
    done = chains.start.copy()
    done[chain[last]] = np.maximum(until[last], done[chain[last]])
    known = chains.status != OPEN
    rest = Spans(done[known], chains.end[known])
    following = ready <= ready[first][gap] + SLACK_NS
    gap, engine = gap[following], calls.engine[order[following]]
    return [union(rest, Spans(*(column[gap[engine == each]] for column in between))) for each in range(engines)]
