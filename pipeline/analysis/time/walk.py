"""What the time of engines was spent on: chains and calls enter as instants, sums by engine and bin leave.

Of a long run in machine code, by numba. Of a short one the same functions run in Python, as loading numba would take longer.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from pipeline.analysis.time.work import OPEN, SLACK_NS, Array, Calls, Lives

BUSY, NOTHING_ADMITTED, RECOVERY, BARRIER, ORCHESTRATION, TAIL, OTHER_ENGINE = range(7)
"""What an engine's time is spent on, the first that holds."""
CUT, START, END, READY, SENT, ENDED, COMES, CAME = range(8)
"""What happens at an instant: see `_walk`."""
IN_FLIGHT, WAITING, AGAIN, COMING = range(4)
"""What is counted by engine: calls in flight, calls that wait, repeated attempts that wait, and chains whose next call is for it."""


COMPILED_FROM = 30_000
"""The number of chains and calls whose walk in Python takes as long as loading numba and what it compiled."""


class IdleRules(NamedTuple):
    """The bins and engines to measure, and what decides on causes of idleness; instants in nanoseconds."""

    edges: Array
    """Edges of the bins."""
    engines: int
    devices: Array
    """Of each device and engine, a row each: whether the engine is on it."""
    lockstep: bool
    """True if the run's schedule was `lockstep`."""
    full: int
    """The number of chains that may live at once."""
    last_admission: int
    """When the last chain started."""


class IdleSums(NamedTuple):
    """Nanoseconds in each bin."""

    open: Array
    """Added up over chains or calls, by row: chains that live (row 0); then by engine calls in flight, and calls that wait."""
    overlap: Array
    """In which two or more engines are busy."""
    spent: Array
    """By engine and after them by device, by what their time is spent on, and by bin."""


def occupancy_sums(rules: IdleRules, chains: Lives, calls: Calls, *, compiled_from: int = COMPILED_FROM) -> IdleSums:
    """What the time of each engine and device was spent on, by bin; in machine code from `compiled_from` chains and calls on."""
    coming, walk = (_compiled(_coming), _compiled(_walk)) if len(chains.start) + len(calls.ready) >= compiled_from else (_coming, _walk)
    ready = _order(calls.ready)
    by_chain = ready[np.argsort(calls.chain[ready], kind="stable")]
    comes = coming(
        by_chain, calls.chain, calls.engine, calls.ready, calls.end, chains.start, chains.end, chains.status != OPEN, rules.engines
    )
    cuts = np.unique(np.clip([*rules.edges.tolist(), rules.last_admission], rules.edges[0], rules.edges[-1]))
    streams = tuple(map(np.ascontiguousarray, (cuts, chains.start, chains.end, calls.ready, calls.submit, calls.end, *comes[1:])))
    orders = tuple(ready if stream is calls.ready else _order(stream) for stream in streams)
    return IdleSums(*walk(rules, streams, orders, calls.engine, calls.again, comes[0]))


def _order(instants: Array) -> Array:
    return np.argsort(instants, kind="stable").astype(np.int32)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` in machine code, which is kept beside this file or in the user's cache folder, whichever can be written."""
    from numba import njit

    try:
        return njit(nogil=True, cache=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # neither can be
        return njit(nogil=True)(function)  # type: ignore[no-any-return]


def _walk(
    rules: IdleRules, streams: tuple[Array, ...], orders: tuple[Array, ...], engine: Array, again: Array, comes_to: Array
) -> tuple[Array, Array, Array]:
    """The fields of `IdleSums`. `streams` are the instants at which time is divided, chains start and end, calls are ready, sent and
    ended, and chains begin and cease to come to an engine; `orders` sort each of them."""
    engines, bins, waits = rules.engines, len(rules.edges) - 1, BARRIER if rules.lockstep else ORCHESTRATION
    live, counts, causes = 0, np.zeros((4, engines), np.int64), np.zeros(engines, np.int64)
    open_ns, overlap = np.zeros((1 + 2 * engines, bins), np.int64), np.zeros(bins, np.int64)
    spent = np.zeros((engines + len(rules.devices), 7, bins), np.int64)
    place, now, passed = 0, rules.edges[0], np.zeros(len(streams), np.int64)
    while passed[CUT] < len(streams[CUT]):
        stream, at = CUT, streams[CUT][orders[CUT][passed[CUT]]]
        for other in range(1, len(streams)):
            if passed[other] < len(streams[other]) and streams[other][orders[other][passed[other]]] < at:
                stream, at = other, streams[other][orders[other][passed[other]]]
        if at > now:
            while now >= rules.edges[place + 1]:
                place += 1
            open_ns[0, place] += (at - now) * live
            rest = TAIL if now >= rules.last_admission and live < rules.full else OTHER_ENGINE
            for e in range(engines):
                open_ns[1 + e, place] += (at - now) * counts[IN_FLIGHT, e]
                open_ns[1 + engines + e, place] += (at - now) * counts[WAITING, e]
                if counts[IN_FLIGHT, e]:
                    causes[e] = BUSY
                elif not live:
                    causes[e] = NOTHING_ADMITTED
                elif counts[AGAIN, e]:
                    causes[e] = RECOVERY
                elif counts[WAITING, e]:
                    causes[e] = waits
                else:
                    causes[e] = ORCHESTRATION if counts[COMING, e] else rest
                spent[e, causes[e], place] += at - now
            for device in range(len(rules.devices)):
                spent[engines + device, causes[rules.devices[device]].min(), place] += at - now
            overlap[place] += (at - now) * ((causes == BUSY).sum() > 1)
            now = at
        row = orders[stream][passed[stream]]
        passed[stream] += 1
        if stream in (START, END):
            live += 1 if stream == START else -1
        elif stream in (READY, SENT):
            change = 1 if stream == READY else -1
            counts[WAITING, engine[row]] += change
            counts[AGAIN, engine[row]] += change * again[row]
        if stream in (SENT, ENDED):
            counts[IN_FLIGHT, engine[row]] += 1 if stream == SENT else -1
        elif stream in (COMES, CAME):
            counts[COMING, comes_to[row]] += 1 if stream == COMES else -1
    return open_ns, overlap, spent


def _coming(
    order: Array, chain: Array, engine: Array, ready: Array, end: Array, starts: Array, ends: Array, known: Array, engines: int
) -> tuple[Array, Array, Array]:
    """When chains are between their calls: the engine of the next one, since when, until when.

    `order` sorts calls by chain, those of a chain by when they became ready. A chain that has made its last call and has not ended is
    between calls at every engine; `known` is false for one without a row: what it does then is not known.
    """
    most = len(order) + engines * len(starts)
    to, since, until, found, call = np.zeros(most, np.int8), np.zeros(most, np.int64), np.zeros(most, np.int64), 0, 0
    for each in range(len(starts)):
        done = -1
        while call < len(order) and chain[order[call]] == each:
            first, begins, idle_since = call, ready[order[call]], max(done, starts[each])
            while call < len(order) and chain[order[call]] == each and (call == first or ready[order[call]] <= done):
                done = max(done, end[order[call]])
                call += 1
            while first < call and ready[order[first]] <= begins + SLACK_NS:
                to[found], since[found], until[found] = engine[order[first]], idle_since, max(idle_since, min(begins, ends[each]))
                found, first = found + 1, first + 1
        for e in range(engines if known[each] else 0):
            to[found], since[found], until[found] = e, max(done, starts[each]), max(done, ends[each])
            found += 1
    return to[:found], since[:found], until[:found]
