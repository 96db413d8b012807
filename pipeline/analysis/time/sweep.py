"""Two loops over the calls of a run, from the last instant back to the first: what engines were idle for, and the critical paths of chains.

Both must see events one after the other, which SQL does badly. They are written once, over flat sequences of numbers: of a short run as
plain Python over lists, of a long one compiled by numba, which only this module imports, and only then. Instants are nanoseconds of work,
see `work.Axis`.

Going back, whatever a chain does next is known already: a chain between two calls waits for the engine of the later one. The invariant of
`sweep`: let `now` be the time of the event that was passed last. `counts` and `masks` hold the state just before it, and all time after it
is added up. So each nanosecond is added up once, when the event before it is met. An example: one chain, from 0 to 10; a call of it to
engine d (ready 0, sent 1, ended 4), then two to engine t (ready 5, sent 5, ended 8; ready 8, sent 9, ended 10):

    10  the chain and its third call end          in flight: t
     9  the third call was sent                   9-10  d waits for another engine, t is busy
     8  it was ready; the second call ends        8-9   d likewise, t is idle with a call that is ready: orchestration
     5  the second call was sent and was ready    5-8   d likewise, t is busy
     4  the first call ends                       4-5   d likewise, the chain comes to t next: orchestration
     1  it was sent                               1-4   d is busy, t waits for another engine
     0  it was ready; the chain starts            0-1   d orchestration, t waits for another engine

    d: 3 busy, 1 orchestration, 6 other engine. t: 4 busy, 2 orchestration, 4 other engine.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pipeline.analysis.arrays import Array

Loop: TypeAlias = Callable[..., None]

NOTHING_ADMITTED, RECOVERY, BARRIER, ORCHESTRATION, TAIL, OTHER_ENGINE, BUSY = range(7)
"""What an engine's time is spent on: a cause of idleness, see `occupancy.CAUSES`, or being busy."""
FINISHED, LOST, OPEN = 0, 1, 2
"""The status of a chain: it came to its end; it failed or was cancelled; it has no row in the chains table (yet)."""
BETWEEN, RETRY, WAIT, QUEUE, PREFILL, DECODE, TRANSFER, ENGINE = range(8)
"""Segments of a critical path, see `critical_path.SEGMENTS`."""
IN_FLIGHT, WAITING, HELD, NEXT = range(4)
"""What is counted of an engine: calls in flight; calls that wait to be sent; failed calls among these that wait to be sent again, which
count only here; and chains between two calls of which the next one is for this engine."""
LIVE, OVERLAP, BY_ENGINE = range(3)
"""Rows of the sums of a sweep: chains that live; time in which two or more engines are busy; from the third row on calls in flight by
engine, calls that wait by engine, and for each group of engines seven rows of what its time is spent on."""
SLACK_NS = 2
"""Ready times are differences of rounded numbers: calls of one chain whose ready times differ by so little were ready together, and one may
end so much later than the next is ready."""
LONG = 30_000
"""Number of calls from which compiling saves time."""
EARLY, LATE = -1, 1 << 62
"""Before and after every instant."""


class Calls(NamedTuple):
    """Calls as columns, in the order of their ends."""

    chain: Array
    """Places in the chains."""
    again: Array
    """True for a repeated attempt at a call."""
    ready: Array
    """When it could have been sent; never after `submit`."""
    submit: Array
    """When it was sent."""
    end: Array
    """When it was answered or had failed; never before `submit`."""
    engine: Array
    """Places of their roles."""
    stage: Array
    """Places of their stages."""
    queue: Array
    """Nanoseconds in the engine's queue by its clock; -1 where it does not measure them."""
    prefill: Array
    """Nanoseconds of prefill, likewise."""
    decode: Array
    """Nanoseconds of decode, likewise."""
    replica: Array
    """The number of the replica; -1 where the row names none."""


class Lives(NamedTuple):
    """Chains as columns."""

    start: Array
    end: Array
    """Never before `start`; the end of the run for a chain without a row."""
    status: Array
    """`FINISHED`, `LOST` or `OPEN`."""


class SweepRules(NamedTuple):
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
    """When the last chain started; on one of several replicas as in `work.Stays.admitted`."""
    last_end: int = EARLY
    """Of one of several replicas: when the last chain of all ended. Until then and since the last admission a replica without chains is in
    the tail."""


def occupancy_sums(rules: SweepRules, chains: Lives, calls: Calls, *, compile: bool) -> Array:
    """Nanoseconds in each bin, a row for each quantity: see `LIVE`."""
    bins, chain_count = len(rules.edges) - 1, len(chains.start)
    sums = np.zeros((BY_ENGINE + 2 * rules.engines + 7 * len(rules.groups), bins), np.int64)
    # The cause of idleness may change at the last admission and the last end, though nothing happens there.
    marks = np.clip([rules.last_admission, rules.last_end], rules.edges[0], rules.edges[-1])
    pieces = np.unique(np.concatenate([rules.edges, marks]))
    bin_of = np.searchsorted(rules.edges, pieces[:-1], "right") - 1
    next_engines = np.where(chains.status == OPEN, 0, (1 << rules.engines) - 1)
    state = (
        next_engines,
        np.full(chain_count, LATE),
        *np.zeros((2, chain_count), np.int64),
        np.zeros(4 * rules.engines, np.int64),
        np.zeros(4, np.int64),
    )
    orders = [np.argsort(times, kind="stable") for times in (chains.start, chains.end, calls.submit, calls.ready)]
    fixed = np.array([rules.lockstep, rules.full, rules.last_admission, rules.last_end, rules.engines, bins], np.int64)
    _run(sweep, (calls[:6], (chains.start, chains.end), tuple(orders), state, (pieces, bin_of, rules.groups, fixed)), sums, compile)
    return sums


def path_sums(chains: Lives, calls: Calls, stages: int, *, compile: bool) -> Array:
    """Nanoseconds by stage and segment, added up over the critical paths of the finished chains; the last row is for the time after a
    chain's last call."""
    sums = np.zeros((stages + 1, 8), np.int64)
    frontier = chains.end.copy(), np.full(len(chains.end), stages)
    _run(walk, ((*calls[:5], *calls[6:10]), frontier, (chains.start, (chains.status == FINISHED).astype(np.int64))), sums, compile)
    return sums


def _run(loop: Loop, arguments: Sequence[tuple[Array, ...]], sums: Array, compile: bool) -> None:
    """Run `loop` over the `arguments` and the flat `sums`, compiled or over lists, which plain Python reads much faster than arrays."""
    if compile:
        _compiled(loop)(*arguments, sums.reshape(-1))
        return
    found = sums.reshape(-1).tolist()
    loop(*(tuple(column.tolist() for column in columns) for columns in arguments), found)
    sums[...] = np.reshape(found, sums.shape)


@cache
def _compiled(loop: Loop) -> Loop:
    """A compiled version of `loop`; kept in numba's cache, where that has a folder."""
    from numba import njit
    from numba.extending import register_jitable

    for each in (_account, _cause, _was_ready, _between, _change):
        register_jitable(each)
    try:
        return njit(loop, cache=True, nogil=True)  # type: ignore[no-any-return]
    except RuntimeError:  # no folder for the cache
        return njit(loop, nogil=True)  # type: ignore[no-any-return]


def sweep(calls: Any, lives: Any, orders: Any, state: Any, bins: Any, sums: Any) -> None:
    """Pass all events and add the time between them to `sums`.

    `orders` are the places of chains by start and by end and of calls by the time they were sent and were ready; of one chain `state` holds
    the engines of its next calls as a bit mask, the latest ready time of those calls, if it lives, and how many of its calls are open.
    """
    # Taken out once: numba counts references to arrays that it takes out of tuples.
    of_chain, again, ready, submit, end, engine = calls
    starts, ends = lives
    by_start, by_end, by_submit, by_ready = orders
    next_engines, _, alive, outstanding, counts, masks = state
    pieces = bins[0]
    now, piece, live = pieces[len(pieces) - 1], len(pieces) - 2, 0
    started = ended = len(starts) - 1
    sent = answered = was_ready = len(end) - 1
    for _ in range(2 * len(starts) + 3 * len(end)):
        chain_ends = ends[by_end[ended]] if ended >= 0 else EARLY
        chain_starts = starts[by_start[started]] if started >= 0 else EARLY
        call_ends = end[answered] if answered >= 0 else EARLY
        call_sent = submit[by_submit[sent]] if sent >= 0 else EARLY
        call_ready = ready[by_ready[was_ready]] if was_ready >= 0 else EARLY
        time = max(chain_ends, chain_starts, call_ends, call_sent, call_ready)
        if time < now:
            now, piece = _account(max(time, pieces[0]), now, piece, live, counts, masks, bins, sums)
        # Of one instant ends come first: a call's before the one that was ready then, so that nothing is between them.
        if chain_ends == time:
            chain = by_end[ended]
            ended -= 1
            live += 1
            alive[chain] = 1
            if not outstanding[chain]:
                _between(next_engines[chain], 1, counts, masks)
        elif call_ends == time:
            chain = of_chain[answered]
            _change(IN_FLIGHT, engine[answered], 1, counts, masks)
            if not outstanding[chain] and alive[chain]:
                _between(next_engines[chain], -1, counts, masks)
            outstanding[chain] += 1
            answered -= 1
        elif call_sent == time:
            call = by_submit[sent]
            _change(IN_FLIGHT, engine[call], -1, counts, masks)
            _change(HELD if again[call] else WAITING, engine[call], 1, counts, masks)
            sent -= 1
        elif call_ready == time:
            call = by_ready[was_ready]
            _change(HELD if again[call] else WAITING, engine[call], -1, counts, masks)
            _was_ready(of_chain[call], engine[call], time, state)
            was_ready -= 1
        else:
            chain = by_start[started]
            started -= 1
            live -= 1
            alive[chain] = 0
            if not outstanding[chain]:
                _between(next_engines[chain], -1, counts, masks)
    _account(pieces[0], now, piece, live, counts, masks, bins, sums)


def _was_ready(chain: int, engine: int, time: int, state: Any) -> None:
    """Before a call was ready its chain was between calls, with this one as its next, if no other is open."""
    next_engines, next_ready, alive, outstanding, counts, masks = state
    outstanding[chain] -= 1
    if next_ready[chain] - time <= SLACK_NS:
        next_engines[chain] |= 1 << engine
    else:
        next_engines[chain], next_ready[chain] = 1 << engine, time
    if not outstanding[chain] and alive[chain]:
        _between(next_engines[chain], 1, counts, masks)


def _account(
    time: int,
    now: int,
    piece: int,
    live: int,
    counts: Any,
    masks: Any,
    bins: Any,
    sums: Any,
) -> tuple[int, int]:
    """Add the time from `time` until `now`, of which the end is in `piece`, to the bins that it lies in; the new `now` and its piece."""
    pieces, bin_of, groups, fixed = bins
    engines, width, flying = fixed[4], fixed[5], masks[IN_FLIGHT]
    while now > time:
        since, place = max(pieces[piece], time), bin_of[piece]
        length = now - since
        sums[LIVE * width + place] += live * length
        if flying & (flying - 1):
            sums[OVERLAP * width + place] += length
        for engine in range(engines):
            waiting = counts[WAITING * engines + engine] + counts[HELD * engines + engine]
            sums[(BY_ENGINE + engine) * width + place] += counts[IN_FLIGHT * engines + engine] * length
            sums[(BY_ENGINE + engines + engine) * width + place] += waiting * length
        for number in range(len(groups)):
            row = BY_ENGINE + 2 * engines + 7 * number + _cause(groups[number], pieces[piece], live, masks, fixed)
            sums[row * width + place] += length
        now = since
        if now == pieces[piece] and piece:
            piece -= 1
    return now, piece


def _cause(group: int, since: int, live: int, masks: Any, fixed: Any) -> int:
    """`BUSY` where an engine of `group` is busy; else why none of them is, see `occupancy.CAUSES`. `since`: the start of the piece."""
    lockstep, full, last_admission, last_end = fixed[0], fixed[1], fixed[2], fixed[3]
    if masks[IN_FLIGHT] & group:
        return BUSY
    if not live:
        return TAIL if last_admission <= since < last_end else NOTHING_ADMITTED
    if masks[HELD] & group:
        return RECOVERY
    if masks[WAITING] & group:
        return BARRIER if lockstep else ORCHESTRATION
    if masks[NEXT] & group:
        return ORCHESTRATION
    return TAIL if last_admission <= since and live < full else OTHER_ENGINE


def _between(engines: int, change: int, counts: Any, masks: Any) -> None:
    """Add `change` to the chains between calls, for each of `engines`, a bit mask of those that the next calls are for."""
    engine = 0
    while engines:
        if engines & 1:
            _change(NEXT, engine, change, counts, masks)
        engines >>= 1
        engine += 1


def _change(kind: int, engine: int, change: int, counts: Any, masks: Any) -> None:
    """Add `change` to a count of an engine, and keep its bit in the mask of engines whose count is not 0 up to date."""
    place = kind * (len(counts) // 4) + engine
    counts[place] += change
    if counts[place]:
        masks[kind] |= 1 << engine
    else:
        masks[kind] &= ~(1 << engine)


def walk(calls: Any, frontier: Any, lives: Any, sums: Any) -> None:
    """Follow the critical paths of the chains that count and add their segments to `sums`.

    `frontier`: for each chain the instant back to which its path is known, and the stage of the call that became ready then. Invariant: the
    time from a frontier to its chain's end is in the sums.
    """
    of_chain, again, readies, submits, ends, of_stage, queues, prefills, decodes = calls
    at, after = frontier
    start, counts = lives
    for row in range(len(ends) - 1, -1, -1):
        chain, stage, ready = of_chain[row], 8 * of_stage[row], readies[row]
        if not counts[chain] or ends[row] > at[chain] + SLACK_NS or ready < start[chain]:
            continue
        until = min(ends[row], at[chain])
        submit = min(submits[row], until)
        sums[8 * after[chain] + BETWEEN] += at[chain] - until
        left = until - submit
        queue = min(max(queues[row], 0), left)
        prefill = min(max(prefills[row], 0), left - queue)
        decode = min(max(decodes[row], 0), left - queue - prefill)
        knows = min(queues[row], prefills[row], decodes[row]) >= 0
        sums[stage + (RETRY if again[row] else WAIT)] += submit - min(ready, until)
        sums[stage + QUEUE] += queue
        sums[stage + PREFILL] += prefill
        sums[stage + DECODE] += decode
        sums[stage + (TRANSFER if knows else ENGINE)] += left - queue - prefill - decode
        at[chain], after[chain] = min(ready, until), of_stage[row]
    for chain in range(len(at)):
        if counts[chain]:
            sums[8 * after[chain] + BETWEEN] += at[chain] - start[chain]
