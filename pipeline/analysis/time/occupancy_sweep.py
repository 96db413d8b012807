"""The sums of an occupancy in one pass, backwards in time: calls enter in chunks, the last ones first, and are forgotten.

Backwards a call begins with its row; what is in flight or waits stands in a heap by the time at which it left or was ready. So
memory holds that and some numbers of each chain. The state lies in a few plain arrays and not in tuples of arrays: numba
counts references to every array that it takes out of a tuple, which was six sevenths of the time.
"""

import numpy as np

from pipeline.analysis.compiled import compiled
from pipeline.analysis.time.occupancy_sums import (
    BARRIER,
    BUSY,
    LATE,
    NOTHING_ADMITTED,
    ORCHESTRATION,
    OTHER_ENGINE,
    RECOVERY,
    SAME_NS,
    TAIL,
    Moments,
    Sums,
    Terms,
    joined,
    no_sums,
)
from pipeline.analysis.time.outline import OPEN, Chains
from pipeline.analysis.time.timeline import Array

EARLY = -1
START, END, AFTER, NEARBY, ALIVE, OUTSTANDING = range(6)
"""What is known of a chain, one row of `lives`: its times; bits of the engines that it comes to next; the latest of the ready
times that count as the last one seen; whether it lives; and how many calls of it wait or are in flight."""
IN_FLIGHT, WAITING, HELD, NEXT = range(4)
"""What is counted by engine: calls, those that wait to be sent again apart, and chains between calls that come to it next."""
NOW, BIN, LIVE, SIZE, STARTS, ENDS, LOCKSTEP, FULL, LAST_ADMISSION, BITS = range(10)
SINCE = BITS + 4
"""Of the present: the time from which on all is added up and its bin, live chains, the size of the heap, starts and ends of
chains that are to come, three of the `Terms`; from `BITS` on for each of the four counts the engines where it is not 0; and from
`SINCE` on the same and the live chains as they were since that time, as far as they say why an engine is idle."""
TIME, READY, CALL = range(3)
"""Of an entry of the heap: `CALL` is chain, engine, whether it is not the first attempt, and whether it waits."""


class Sweep:
    """The sums of calls that are added chunk by chunk."""

    def __init__(self, terms: Terms, chains: Chains) -> None:
        self._terms, self._sums = terms, no_sums(terms)
        self._lives = _lives(terms, chains)
        self._orders = np.argsort(chains.start).astype(np.int32), np.argsort(chains.end).astype(np.int32)
        self._counts, self._present = np.zeros((4, terms.engines), np.int64), _present(terms, len(chains.start))
        self._heap = np.empty((0, 3), np.int64)
        nobody = np.zeros(len(chains.start), np.int32)
        _spread(chains.start, chains.end, nobody, terms.edges, self._sums.live.reshape(1, -1))

    def add(self, calls: Moments) -> None:
        """Go back to the end of the first of `calls`."""
        if len(calls.end):
            self._pass(calls)

    def sums(self) -> Sums:
        """Go back to the start."""
        self._pass(joined([]))
        return self._sums

    def _pass(self, calls: Moments) -> None:
        room = int(self._present[SIZE]) + len(calls.end)
        if room > len(self._heap):
            self._heap = np.concatenate([self._heap, np.empty((room - len(self._heap), 3), np.int64)])
        terms, sums = self._terms, self._sums
        _spread(calls.submit, calls.end, calls.engine, terms.edges, sums.in_flight)
        _spread(calls.ready, calls.submit, calls.engine, terms.edges, sums.waiting)
        bins = (terms.edges, terms.groups, sums.overlap, sums.spent)
        _sweep(tuple(calls), self._heap, self._lives, self._orders, self._counts, self._present, bins)


def _lives(terms: Terms, chains: Chains) -> Array:
    lives = np.zeros((len(chains.start), 6), np.int64)
    lives[:, START], lives[:, END] = chains.start, chains.end
    lives[:, AFTER] = np.where(chains.status == OPEN, 0, (1 << terms.engines) - 1)
    lives[:, NEARBY] = LATE
    return lives


def _present(terms: Terms, chains: int) -> Array:
    rules = (int(terms.lockstep), terms.full, terms.last_admission)
    return np.array([terms.edges[-1], len(terms.edges) - 2, 0, 0, chains, chains, *rules, *[0] * 9], np.int64)


@compiled
def _spread(starts: Array, ends: Array, owners: Array, edges: Array, into: Array) -> None:
    """Add the length of each span to the bins that it lies in, by its owner."""
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


@compiled
def _sweep(
    calls: tuple[Array, ...],
    heap: Array,
    lives: Array,
    orders: tuple[Array, Array],
    counts: Array,
    present: Array,
    bins: tuple[Array, Array, Array, Array],
) -> None:
    """Pass all events down to the first of `calls`, or, where there are none, down to the start."""
    chain, engine, again, ready, submit, end = calls
    (by_start, by_end), (edges, groups, overlap, spent) = orders, bins
    row = len(end) - 1
    to_start = row < 0
    while row >= 0 or to_start:
        over = lives[by_end[present[ENDS] - 1], END] if present[ENDS] else EARLY
        begun = lives[by_start[present[STARTS] - 1], START] if present[STARTS] else EARLY
        came = end[row] if row >= 0 else EARLY
        left = heap[0, TIME] if present[SIZE] else EARLY
        time = max(max(over, begun), max(came, left))
        if time == EARLY:
            _account(edges[0], present, edges, groups, overlap, spent)
            return
        if over == time:
            present[ENDS] -= 1
            _chain_ends(lives[by_end[present[ENDS]]], counts, present)
        elif came == time:
            _call_ends(lives[chain[row]], engine[row], counts, present)
            present[SIZE] += 1
            _rise(heap, present[SIZE] - 1, submit[row], ready[row], _packed(chain[row], engine[row], again[row]))
            row -= 1
        elif left == time:
            _call_leaves(heap, lives, counts, present)
        else:
            present[STARTS] -= 1
            _chain_starts(lives[by_start[present[STARTS]]], counts, present)
        if _changes(present, counts.shape[1]):
            _account(time, present, edges, groups, overlap, spent)
            _remember(present, counts.shape[1])


@compiled
def _reasons(kind: int, present: Array) -> int:
    """What one of the four counts says of idleness: nothing of engines that are busy."""
    at_once = present[BITS + IN_FLIGHT]
    return int(at_once if kind == IN_FLIGHT else present[BITS + kind] & ~at_once)


@compiled
def _lives_matter(present: Array, engines: int) -> int:
    """The live chains, if any engine is idle."""
    return int(present[LIVE]) if present[BITS + IN_FLIGHT] != (1 << engines) - 1 else 0


@compiled
def _changes(present: Array, engines: int) -> bool:
    """Is anything other than it was since the time from which on all is added up?"""
    for kind in range(4):
        if present[SINCE + kind] != _reasons(kind, present):
            return True
    return bool(present[SINCE + 4] != _lives_matter(present, engines))


@compiled
def _remember(present: Array, engines: int) -> None:
    for kind in range(4):
        present[SINCE + kind] = _reasons(kind, present)
    present[SINCE + 4] = _lives_matter(present, engines)


@compiled
def _account(time: int, present: Array, edges: Array, groups: Array, overlap: Array, spent: Array) -> None:
    """Add what lies between `time` and the last change."""
    while present[NOW] > time:
        place = present[BIN]
        since = max(edges[place], time)
        length = present[NOW] - since
        if length:
            at_once = present[SINCE + IN_FLIGHT]
            overlap[place] += length if at_once & (at_once - 1) else 0
            for number in range(len(groups)):
                spent[number, _cause(groups[number], present), place] += length
        present[NOW] = since
        if since == edges[place] and place:
            present[BIN] -= 1


@compiled
def _cause(group: int, present: Array) -> int:
    """Why none of the engines in `group` is busy, or that one is; see `occupancy.CAUSES`."""
    if present[SINCE + IN_FLIGHT] & group:
        return BUSY
    if not present[SINCE + 4]:
        return NOTHING_ADMITTED
    if present[SINCE + HELD] & group:
        return RECOVERY
    if present[SINCE + WAITING] & group:
        return BARRIER if present[LOCKSTEP] else ORCHESTRATION
    if present[SINCE + NEXT] & group:
        return ORCHESTRATION
    if present[NOW] > present[LAST_ADMISSION] and present[SINCE + 4] < present[FULL]:
        return TAIL
    return OTHER_ENGINE


@compiled
def _chain_ends(life: Array, counts: Array, present: Array) -> None:
    present[LIVE] += 1
    life[ALIVE] = 1
    if not life[OUTSTANDING]:
        _between(life[AFTER], 1, counts, present)


@compiled
def _chain_starts(life: Array, counts: Array, present: Array) -> None:
    present[LIVE] -= 1
    life[ALIVE] = 0
    if not life[OUTSTANDING]:
        _between(life[AFTER], -1, counts, present)


@compiled
def _call_ends(life: Array, engine: int, counts: Array, present: Array) -> None:
    _change(IN_FLIGHT, engine, 1, counts, present)
    if not life[OUTSTANDING] and life[ALIVE]:
        _between(life[AFTER], -1, counts, present)
    life[OUTSTANDING] += 1


@compiled
def _call_leaves(heap: Array, lives: Array, counts: Array, present: Array) -> None:
    """The call on top was sent or, if it waits already, was ready."""
    ready, call = heap[0, READY], heap[0, CALL]
    engine, waits, waiting = (call >> 2) & 63, call & 1, HELD if call & 2 else WAITING
    _change(waiting if waits else IN_FLIGHT, engine, -1, counts, present)
    if not waits and ready < heap[0, TIME]:
        _change(waiting, engine, 1, counts, present)
        _sink(heap, present[SIZE], ready, ready, call | 1)
        return
    present[SIZE] -= 1
    size = present[SIZE]
    _sink(heap, size, heap[size, TIME], heap[size, READY], heap[size, CALL])
    _call_was_ready(lives[call >> 8], engine, ready, counts, present)


@compiled
def _call_was_ready(life: Array, engine: int, ready: int, counts: Array, present: Array) -> None:
    life[OUTSTANDING] -= 1
    if life[NEARBY] - ready <= SAME_NS:
        life[AFTER] |= 1 << engine
    else:
        life[AFTER], life[NEARBY] = 1 << engine, ready
    if not life[OUTSTANDING] and life[ALIVE]:
        _between(life[AFTER], 1, counts, present)


@compiled
def _between(engines: int, change: int, counts: Array, present: Array) -> None:
    """A chain that comes to `engines` next is between calls, or not any more."""
    engine = 0
    while engines:
        if engines & 1:
            _change(NEXT, engine, change, counts, present)
        engines >>= 1
        engine += 1


@compiled
def _change(kind: int, engine: int, change: int, counts: Array, present: Array) -> None:
    counts[kind, engine] += change
    if counts[kind, engine]:
        present[BITS + kind] |= 1 << engine
    else:
        present[BITS + kind] &= ~(1 << engine)


@compiled
def _packed(chain: int, engine: int, again: bool) -> int:
    return (chain << 8) | (engine << 2) | (2 if again else 0)


@compiled
def _rise(heap: Array, place: int, time: int, ready: int, call: int) -> None:
    """Put an entry into the free `place` at the bottom, or above it."""
    while place and heap[(place - 1) >> 1, TIME] < time:
        above = (place - 1) >> 1
        heap[place, TIME], heap[place, READY], heap[place, CALL] = heap[above, TIME], heap[above, READY], heap[above, CALL]
        place = above
    heap[place, TIME], heap[place, READY], heap[place, CALL] = time, ready, call


@compiled
def _sink(heap: Array, size: int, time: int, ready: int, call: int) -> None:
    """Put an entry into the free place on top, or below it."""
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
