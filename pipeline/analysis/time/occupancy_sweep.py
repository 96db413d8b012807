"""The sums of an occupancy, in whole nanoseconds, by a sweep line backwards in time: calls enter in chunks, the last ones first.

A row is written when its call ends, so read backwards a call begins with its row. Calls in flight or waiting are held in a heap,
ordered by the time at which they were sent or were ready; memory holds those calls and a few numbers of each chain.

The invariant. Let `t` be the time of the event that was passed last. `counts` holds the state just before `t`: for each engine
how many calls were in flight, how many waited in its lane, how many waited to be sent again, and how many chains were between two
calls and came to it next. The heap holds exactly the calls that ended at `t` or later and were ready before it. All time
after `state[NOW]` is added up, and between `t` and `state[NOW]` nothing changed that decides why an engine is idle. So each
nanosecond is added up once, when the change before it is met.

An example: one chain, from 0 to 10; a call of it to engine d (ready 0, sent 1, ended 4), then two to engine t (ready 5, sent 5,
ended 8; ready 8, sent 9, ended 10). Events from the last to the first, and what is added up when each is met:

    10  the chain and its third call end          in flight: t
     9  the third call was sent                   9-10  d waits for another engine, t is busy
     8  it was ready; the second call ends        8-9   d likewise, t is idle with a call that is ready: orchestration
     5  the second call was sent and was ready    5-8   d likewise, t is busy
     4  the first call ends                       4-5   d likewise, the chain comes to t next: orchestration
     1  it was sent                               1-4   d is busy, t waits for another engine
     0  it was ready; the chain starts            0-1   d orchestration, t waits for another engine

    d: 3 busy, 1 orchestration, 6 other engine. t: 4 busy, 2 orchestration, 4 other engine.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from pipeline.analysis.compiled import compiled
from pipeline.analysis.time.outline import OPEN, Chains
from pipeline.analysis.time.stays import Lives
from pipeline.analysis.time.timeline import Array

NOTHING_ADMITTED, RECOVERY, BARRIER, ORCHESTRATION, TAIL, OTHER_ENGINE, BUSY = range(7)
"""What an engine's time is spent on: a cause of idleness, see `occupancy.CAUSES`, or being busy."""
SAME_NS = 2
"""Calls of one chain whose ready times differ by so little were ready together: ready times are differences of rounded numbers."""
LATE = 1 << 62
"""After every instant."""
EARLY = -1
"""Before every instant."""

# The state lies in a few plain arrays and not in tuples of arrays or objects: numba counts references to every array that it
# takes out of a tuple, which was six sevenths of the time. The names below are indices into them.
START, END, NEXT_ENGINES, NEXT_READY, ALIVE, OUTSTANDING = range(6)
"""Columns of the array with a row for each chain: its times; a bit mask of the engines of its next calls; the latest ready time of
those calls; whether it lives; and how many of its calls wait or are in flight."""
IN_FLIGHT, WAITING, HELD, NEXT = range(4)
"""Rows of `counts`, which has a column for each engine: calls in flight; calls that wait in the lane; failed calls that wait to be
sent again, which are not among those in the lane; and chains between two calls whose next call is for this engine."""
NOW, BIN, LIVE, SIZE, STARTS, ENDS, LOCKSTEP, FULL, LAST_ADMISSION, LAST_END, BITS = range(11)
SINCE = BITS + 4
"""Elements of `state`: the time after which all is added up, and its bin; the number of live chains; the size of the heap; how many
starts and ends of chains are not passed yet; four of the `Rules`; from `BITS` on, for each of the four counts, a bit mask of the
engines where it is not 0; and from `SINCE` on the same masks and the live chains as they were at `NOW`, as far as they decide why
an engine is idle."""
TIME, READY, CALL = range(3)
"""Columns of the heap: the time that entries are ordered by, the ready time, and `CALL`: chain, engine, whether it is a repeated
attempt, and whether it waits, packed into one number by `_packed`."""


class Rules(NamedTuple):
    """The bins and engines to measure, and what decides on causes of idleness. Times are nanoseconds of work."""

    edges: Array
    """Edges of the bins."""
    engines: int
    """How many there are."""
    groups: Array
    """Sets of engines as bit masks: first each engine alone, in order, then the engines of each shared device."""
    lockstep: bool
    """Whether the run's schedule was `lockstep`."""
    full: int
    """The most chains that may live at once."""
    last_admission: int
    """When the last chain started; on one of several replicas as in `Stays.admitted`."""
    last_end: int = EARLY
    """Of one of several replicas: when the last chain of all ended. Until then and since the last admission a replica without chains is in
    the tail."""


class Sums(NamedTuple):
    """Nanoseconds in each bin; the bin is the last dimension of every array."""

    live: Array
    """Added up over live chains."""
    overlap: Array
    """In which two or more engines were busy."""
    in_flight: Array
    """By engine, added up over requests in flight."""
    waiting: Array
    """By engine, added up over waiting requests."""
    spent: Array
    """By group of engines and by cause of idleness or `BUSY`."""


class CallTimes(NamedTuple):
    """What the sweep needs of each call, as columns in the order of the calls' ends; as in `calls.Calls`."""

    chain: Array
    engine: Array
    again: Array
    ready: Array
    submit: Array
    end: Array


NO_CALLS = CallTimes(*(np.empty(0, kind) for kind in (np.int64, np.int32, np.bool_, np.int64, np.int64, np.int64)))


def no_sums(rules: Rules) -> Sums:
    """Sums of the right shapes, all 0."""
    bins, groups = len(rules.edges) - 1, len(rules.groups)
    shapes = [(bins,), (bins,), (rules.engines, bins), (rules.engines, bins), (groups, 7, bins)]
    return Sums(*(np.zeros(shape, np.int64) for shape in shapes))


def most_live(chains: Chains | Lives) -> int:
    """The most chains that lived at once."""
    starts, ends = np.sort(chains.start), np.sort(chains.end)
    return int((np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, "right")).max(initial=0))


class SweepLine:
    """Adds up the sums of calls that are added chunk by chunk, from the last to the first. `long`: compile, see `calls.is_long`."""

    def __init__(self, rules: Rules, chains: Chains | Lives, *, long: bool) -> None:
        self._rules, self._sums = rules, no_sums(rules)
        self._add_spans: Callable[..., None] = compiled(_add_spans) if long else _add_spans
        self._pass_events: Callable[..., None] = compiled(_pass_events, *PARTS) if long else _pass_events
        self._chain_rows = _chain_rows(rules, chains)
        self._orders = np.argsort(chains.start).astype(np.int32), np.argsort(chains.end).astype(np.int32)
        self._counts, self._state = np.zeros((4, rules.engines), np.int64), _first_state(rules, len(chains.start))
        self._heap = np.empty((0, 3), np.int64)
        nobody = np.zeros(len(chains.start), np.int32)
        self._add_spans(chains.start, chains.end, nobody, rules.edges, self._sums.live.reshape(1, -1))

    def add(self, calls: CallTimes) -> None:
        """Pass all events down to the end of the first of `calls`."""
        if len(calls.end):
            self._pass(calls)

    def sums(self) -> Sums:
        """Pass the events that are left, down to the start of the run; the sums of everything."""
        self._pass(NO_CALLS)
        return self._sums

    def _pass(self, calls: CallTimes) -> None:
        room = int(self._state[SIZE]) + len(calls.end)
        if room > len(self._heap):
            self._heap = np.concatenate([self._heap, np.empty((room - len(self._heap), 3), np.int64)])
        rules, sums = self._rules, self._sums
        self._add_spans(calls.submit, calls.end, calls.engine, rules.edges, sums.in_flight)
        self._add_spans(calls.ready, calls.submit, calls.engine, rules.edges, sums.waiting)
        bins = (rules.edges, rules.groups, sums.overlap, sums.spent)
        self._pass_events(tuple(calls), self._heap, self._chain_rows, self._orders, self._counts, self._state, bins)


def _chain_rows(rules: Rules, chains: Chains | Lives) -> Array:
    rows = np.zeros((len(chains.start), 6), np.int64)
    rows[:, START], rows[:, END] = chains.start, chains.end
    rows[:, NEXT_ENGINES] = np.where(chains.status == OPEN, 0, (1 << rules.engines) - 1)
    rows[:, NEXT_READY] = LATE
    return rows


def _first_state(rules: Rules, chains: int) -> Array:
    fixed = (int(rules.lockstep), rules.full, rules.last_admission, rules.last_end)
    return np.array([rules.edges[-1], len(rules.edges) - 2, 0, 0, chains, chains, *fixed, *[0] * 9], np.int64)


def _add_spans(starts: Array, ends: Array, owners: Array, edges: Array, into: Array) -> None:
    """Add to `into[owner, bin]` how much of each span lies in each bin."""
    bins = len(edges) - 1
    place = bins - 1
    for span in range(len(starts) - 1, -1, -1):
        until, since = min(ends[span], edges[bins]), max(starts[span], edges[0])
        while place < bins - 1 and edges[place + 1] < until:
            place += 1
        while place and edges[place] >= until:
            place -= 1
        at = place
        while since < until:
            low = max(edges[at], since)
            into[owners[span], at] += until - low
            until, at = low, at - 1


def _pass_events(
    calls: tuple[Array, ...],
    heap: Array,
    chains: Array,
    orders: tuple[Array, Array],
    counts: Array,
    state: Array,
    bins: tuple[Array, Array, Array, Array],
) -> None:
    """Pass all events down to the first of `calls`, or, where there are none, down to the start."""
    of_chain, engine, again, ready, submit, end = calls
    (by_start, by_end), (edges, groups, overlap, spent) = orders, bins
    row = len(end) - 1
    to_start = row < 0
    while row >= 0 or to_start:
        chain_ended = chains[by_end[state[ENDS] - 1], END] if state[ENDS] else EARLY
        chain_started = chains[by_start[state[STARTS] - 1], START] if state[STARTS] else EARLY
        call_ended = end[row] if row >= 0 else EARLY
        call_left = heap[0, TIME] if state[SIZE] else EARLY
        time = max(max(chain_ended, chain_started), max(call_ended, call_left))
        if time == EARLY:
            _account(edges[0], state, edges, groups, overlap, spent)
            return
        # Of one instant ends come first: a call's before the one that was ready then, so that nothing is between them.
        if chain_ended == time:
            state[ENDS] -= 1
            _chain_ends(chains[by_end[state[ENDS]]], counts, state)
        elif call_ended == time:
            _call_ends(chains[of_chain[row]], engine[row], counts, state)
            state[SIZE] += 1
            _rise(heap, state[SIZE] - 1, submit[row], ready[row], _packed(of_chain[row], engine[row], again[row]))
            row -= 1
        elif call_left == time:
            _call_leaves(heap, chains, counts, state)
        else:
            state[STARTS] -= 1
            _chain_starts(chains[by_start[state[STARTS]]], counts, state)
        if _changes(state, counts.shape[1]):
            _account(time, state, edges, groups, overlap, spent)
            _remember(state, counts.shape[1])


def _reasons(kind: int, state: Array) -> int:
    """Bit mask of the engines whose count of this `kind` is not 0; for kinds other than `IN_FLIGHT` without engines that are busy."""
    at_once = state[BITS + IN_FLIGHT]
    return int(at_once if kind == IN_FLIGHT else state[BITS + kind] & ~at_once)


def _live_where_idle(state: Array, engines: int) -> int:
    """The number of live chains, or 0 where all engines are busy and it decides nothing."""
    return int(state[LIVE]) if state[BITS + IN_FLIGHT] != (1 << engines) - 1 else 0


def _changes(state: Array, engines: int) -> bool:
    """Whether anything that decides on causes of idleness differs from what it was at `NOW`."""
    for kind in range(4):
        if state[SINCE + kind] != _reasons(kind, state):
            return True
    return bool(state[SINCE + 4] != _live_where_idle(state, engines))


def _remember(state: Array, engines: int) -> None:
    """Keep what decides on causes of idleness as the state at `NOW`."""
    for kind in range(4):
        state[SINCE + kind] = _reasons(kind, state)
    state[SINCE + 4] = _live_where_idle(state, engines)


def _account(time: int, state: Array, edges: Array, groups: Array, overlap: Array, spent: Array) -> None:
    """Add the time from `time` until `NOW` to the bins it lies in, and move `NOW` back to `time`."""
    while state[NOW] > time:
        place = state[BIN]
        since = max(edges[place], time)
        for mark in (state[LAST_ADMISSION], state[LAST_END]):
            if since < mark < state[NOW]:  # nothing of this replica need happen at these two instants
                since = mark
        length = state[NOW] - since
        if length:
            at_once = state[SINCE + IN_FLIGHT]
            overlap[place] += length if at_once & (at_once - 1) else 0
            for number in range(len(groups)):
                spent[number, _cause(groups[number], state), place] += length
        state[NOW] = since
        if since == edges[place] and place:
            state[BIN] -= 1


def _cause(group: int, state: Array) -> int:
    """`BUSY` where an engine of `group` is busy; else why none of them is, see `occupancy.CAUSES`."""
    if state[SINCE + IN_FLIGHT] & group:
        return BUSY
    if not state[SINCE + 4]:
        return TAIL if state[LAST_ADMISSION] < state[NOW] <= state[LAST_END] else NOTHING_ADMITTED
    if state[SINCE + HELD] & group:
        return RECOVERY
    if state[SINCE + WAITING] & group:
        return BARRIER if state[LOCKSTEP] else ORCHESTRATION
    if state[SINCE + NEXT] & group:
        return ORCHESTRATION
    if state[NOW] > state[LAST_ADMISSION] and state[SINCE + 4] < state[FULL]:
        return TAIL
    return OTHER_ENGINE


def _chain_ends(chain: Array, counts: Array, state: Array) -> None:
    """Pass the end of a chain, backwards: before it the chain lived."""
    state[LIVE] += 1
    chain[ALIVE] = 1
    if not chain[OUTSTANDING]:
        _between(chain[NEXT_ENGINES], 1, counts, state)


def _chain_starts(chain: Array, counts: Array, state: Array) -> None:
    """Pass the start of a chain, backwards: before it the chain did not live."""
    state[LIVE] -= 1
    chain[ALIVE] = 0
    if not chain[OUTSTANDING]:
        _between(chain[NEXT_ENGINES], -1, counts, state)


def _call_ends(chain: Array, engine: int, counts: Array, state: Array) -> None:
    """Pass the end of a call, backwards: before it the call was in flight and its chain not between calls."""
    _change(IN_FLIGHT, engine, 1, counts, state)
    if not chain[OUTSTANDING] and chain[ALIVE]:
        _between(chain[NEXT_ENGINES], -1, counts, state)
    chain[OUTSTANDING] += 1


def _call_leaves(heap: Array, chains: Array, counts: Array, state: Array) -> None:
    """Pass the sending of the call on top of the heap or, if it waits already, its becoming ready, backwards."""
    ready, call = heap[0, READY], heap[0, CALL]
    engine, waits, waiting = (call >> 2) & 63, call & 1, HELD if call & 2 else WAITING
    _change(waiting if waits else IN_FLIGHT, engine, -1, counts, state)
    if not waits and ready < heap[0, TIME]:
        _change(waiting, engine, 1, counts, state)
        _sink(heap, state[SIZE], ready, ready, call | 1)
        return
    state[SIZE] -= 1
    size = state[SIZE]
    _sink(heap, size, heap[size, TIME], heap[size, READY], heap[size, CALL])
    _call_was_ready(chains[call >> 8], engine, ready, counts, state)


def _call_was_ready(chain: Array, engine: int, ready: int, counts: Array, state: Array) -> None:
    """Pass a call's becoming ready, backwards: before it the chain was between calls, with this one as its next, if no other is open."""
    chain[OUTSTANDING] -= 1
    if chain[NEXT_READY] - ready <= SAME_NS:
        chain[NEXT_ENGINES] |= 1 << engine
    else:
        chain[NEXT_ENGINES], chain[NEXT_READY] = 1 << engine, ready
    if not chain[OUTSTANDING] and chain[ALIVE]:
        _between(chain[NEXT_ENGINES], 1, counts, state)


def _between(engines: int, change: int, counts: Array, state: Array) -> None:
    """Add `change` to the chains between calls, for each of `engines`, a bit mask of those that the next calls are for."""
    engine = 0
    while engines:
        if engines & 1:
            _change(NEXT, engine, change, counts, state)
        engines >>= 1
        engine += 1


def _change(kind: int, engine: int, change: int, counts: Array, state: Array) -> None:
    """Add `change` to a count of an engine, and keep its bit in `state` up to date."""
    counts[kind, engine] += change
    if counts[kind, engine]:
        state[BITS + kind] |= 1 << engine
    else:
        state[BITS + kind] &= ~(1 << engine)


def _packed(chain: int, engine: int, again: bool) -> int:
    """A call as one number: the chain, 6 bits for the engine, whether it is a repeated attempt, and whether it waits, which is not yet."""
    return (chain << 8) | (engine << 2) | (2 if again else 0)


def _rise(heap: Array, place: int, time: int, ready: int, call: int) -> None:
    """Sift an entry up the heap from the free `place` at its bottom; the latest time is on top."""
    while place and heap[(place - 1) >> 1, TIME] < time:
        above = (place - 1) >> 1
        heap[place, TIME], heap[place, READY], heap[place, CALL] = heap[above, TIME], heap[above, READY], heap[above, CALL]
        place = above
    heap[place, TIME], heap[place, READY], heap[place, CALL] = time, ready, call


def _sink(heap: Array, size: int, time: int, ready: int, call: int) -> None:
    """Sift an entry down the heap of `size` entries from the free place on top."""
    place = 0
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and heap[below + 1, TIME] > heap[below, TIME]:
            below += 1
        if heap[below, TIME] <= time:
            break
        heap[place, TIME], heap[place, READY], heap[place, CALL] = heap[below, TIME], heap[below, READY], heap[below, CALL]
        place = below
    heap[place, TIME], heap[place, READY], heap[place, CALL] = time, ready, call


PARTS: tuple[Callable[..., Any], ...] = (
    *(_reasons, _live_where_idle, _changes, _remember, _account, _cause, _chain_ends, _chain_starts, _call_ends, _call_leaves),
    *(_call_was_ready, _between, _change, _packed, _rise, _sink),
)
"""All functions that `_pass_events` calls, directly or not."""
