"""When each engine and device was busy, and why it was idle, over time in bins: a run on its axis enters, one `Occupancy` leaves.

One walk in the order of time, over the instants at which chains start and end and calls are ready, sent and ended, adds up what every
engine's time was spent on. At any instant the first cause that holds counts, so that the parts of a bin add up to its length.

An example: one chain, from 0 to 10; a call of it to engine d (ready 0, sent 1, ended 4), then two to engine t (ready 5, sent 5, ended 8;
ready 8, sent 9, ended 10):

    t busy             5-8 9-10
    t has a call       8-9          orchestration
    t is next          4-5          orchestration
    else               0-4          another engine

    t: 4 busy, 2 orchestration, 4 other engine. d: 3 busy, 1 orchestration (0-1), 6 other engine.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct
from numba import njit

from pipeline.analysis.facts import EngineFacts, devices_of, engine_facts
from pipeline.analysis.time.work import OPEN, SLACK_NS, Array, Calls, Lives, RunTimes

BINS = 600
BUSY, NOTHING_ADMITTED, RECOVERY, BARRIER, ORCHESTRATION, TAIL, OTHER_ENGINE = range(7)
"""What an engine's time is spent on, the first that holds."""
CUT, START, END, READY, SENT, ENDED, COMES, CAME = range(8)
"""What happens at an instant: see `_walk`."""
IN_FLIGHT, WAITING, AGAIN, COMING = range(4)
"""What is counted by engine: calls in flight, calls that wait, repeated attempts that wait, and chains whose next call is for it."""
CAUSES = ("nothing_admitted", "recovery", "barrier", "orchestration", "tail", "other_engine")
"""Why an engine without a request is idle; at any instant the first cause that holds:

- `nothing_admitted`: no chain lives (on the replica, of several).
- `recovery`: a call to it failed and waits to be sent again: the engine is being restarted, or is given fewer calls. This comes
  before the next two causes, because its other calls are held back for the same reason.
- `barrier`: in a lockstep run, a call to it is ready and waits for the rest of its round.
- `orchestration`: a call to it is ready and was not sent, or a chain is between its calls and the next one is for it. A chain
  that has made its last call and has not ended keeps the next chain from being admitted, and counts for every engine.
- `tail`: the last chain was admitted and fewer live than the batch size (or than ever lived at once): too little work is left. On one
  of several replicas: the last chain began there, and fewer live there, or none while others still have some.
- `other_engine`: none of these: all live chains have their current or next call at other engines.
"""


class Spent(Struct, frozen=True, kw_only=True):
    """What the time of an engine or device was spent on; the arrays have one element for each bin."""

    busy_s: Array
    """Seconds of the bin in which at least one request was in flight."""
    idle_s: dict[str, Array]
    """Seconds of the bin by each of `CAUSES`; with `busy_s` they are the bin's length."""
    total_busy_s: float
    """Sum of `busy_s` over all bins."""
    total_idle_s: dict[str, float]
    """IdleSums of `idle_s` over all bins, by cause."""


class EngineOccupancy(Spent, frozen=True, kw_only=True):
    """One engine over time."""

    in_flight: Array
    """Requests in flight, averaged over the bin."""
    waiting: Array
    """Requests in its lane, held back by a barrier or until they are sent again, averaged over the bin."""


class DeviceOccupancy(Spent, frozen=True, kw_only=True):
    """One device over time: it is busy while any of its engines is; else the first cause that holds for any of them counts."""

    roles: tuple[str, ...]
    """Its engines."""


class Occupancy(Struct, frozen=True, kw_only=True):
    """A run over time, without the pauses between the sessions of a run that was resumed.

    With several replicas, chains and requests are counted over all of them; seconds of engines, devices and overlap are means over the
    replicas, so that busy and idle seconds still add up to the length of a bin. The batch size is per replica.
    """

    span_s: float
    """Seconds from the start of the run until its end; of one in progress or killed, until the last event in the trace."""
    edges_s: Array
    """Edges of the bins, one more than there are bins; seconds since the start."""
    live: Array
    """Live chains, averaged over the bin."""
    engines: dict[str, EngineOccupancy]
    """By role."""
    devices: dict[str, DeviceOccupancy]
    """By the device's name."""
    overlap: Array
    """Seconds of the bin in which two or more engines were busy."""
    overlap_s: float
    """Sum of `overlap` over all bins."""
    overlap_share: float
    """`overlap_s` over `span_s`, 0 to 1."""
    replicas: int = 1


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
    """When the last chain started, of several replicas on this one."""
    last_end: int = -1
    """Of one of several replicas: when the last chain of all ended. Until then and since the last admission a replica without chains is in
    the tail."""


class IdleSums(NamedTuple):
    """Nanoseconds in each bin."""

    open: Array
    """Added up over chains or calls, by row: chains that live (row 0); then by engine calls in flight, and calls that wait."""
    overlap: Array
    """In which two or more engines are busy."""
    spent: Array
    """By engine and after them by device, by what their time is spent on, and by bin."""


def occupancy(work: RunTimes, bins: int = BINS) -> Occupancy:
    """The occupancy of a run, with time divided into `bins`."""
    lives, calls, devices = work.lives, work.calls, _devices(work)
    edges = np.rint(np.linspace(0, work.span, bins + 1)).astype(np.int64)
    on = np.array([[role in roles for role in work.engines] for roles in devices.values()], bool).reshape(len(devices), len(work.engines))
    parts, last_end = [(lives, calls)], -1
    if work.replicas:
        parts, last_end = [_of_replica(number, lives, calls) for number in work.replicas], int(lives.end.max(initial=-1))
    sums = []
    for some, theirs in parts:
        most = most_at_once(some)
        rules = IdleRules(
            edges=edges,
            engines=len(work.engines),
            devices=on,
            lockstep=work.run.options.schedule == "lockstep",
            full=min(work.run.options.batch_size, most),
            last_admission=int(some.start.max(initial=0)),
            last_end=last_end,
        )
        sums.append(occupancy_sums(rules, some, theirs))
    return _occupancy(work, edges, devices, IdleSums(*(sum(each[1:], each[0]) for each in zip(*sums, strict=True))), len(parts))


def _of_replica(number: int, lives: Lives, calls: Calls) -> tuple[Lives, Calls]:
    mine = lives.replica == number
    own = Calls(*(column[mine[calls.chain]] for column in calls))
    return Lives(*(column[mine] for column in lives)), own._replace(chain=(np.cumsum(mine) - 1)[own.chain])


def _occupancy(work: RunTimes, edges: Array, devices: dict[str, tuple[str, ...]], sums: IdleSums, replicas: int) -> Occupancy:
    width, span_s, count = np.maximum(np.diff(edges), 1), work.span / 1e9, len(work.engines)
    overlap_s = float(sums.overlap.sum() / replicas / 1e9)
    at_once = sums.open / width
    return Occupancy(
        span_s=span_s,
        edges_s=edges / 1e9,
        live=at_once[0],
        engines={
            role: EngineOccupancy(in_flight=at_once[1 + place], waiting=at_once[1 + count + place], **_parts(sums.spent[place], replicas))
            for place, role in enumerate(work.engines)
        },
        devices={
            name: DeviceOccupancy(roles=roles, **_parts(sums.spent[place], replicas))
            for place, (name, roles) in enumerate(devices.items(), start=count)
        },
        overlap=sums.overlap / replicas / 1e9,
        overlap_s=overlap_s,
        overlap_share=overlap_s / span_s if span_s else 0.0,
        replicas=replicas,
    )


def _parts(spent: Array, replicas: int) -> dict[str, Any]:
    """The fields of `Spent`, from nanoseconds by what they are spent on and bin."""
    busy, *idle = spent / replicas / 1e9
    total_busy, *total_idle = (spent.sum(axis=1) / replicas / 1e9).tolist()
    idle_s, total_idle_s = (dict(zip(CAUSES, each, strict=True)) for each in (idle, total_idle))
    return {"busy_s": busy, "idle_s": idle_s, "total_busy_s": total_busy, "total_idle_s": total_idle_s}


def _devices(work: RunTimes) -> dict[str, tuple[str, ...]]:
    """The engines on each device."""
    facts = engine_facts(work.run)
    on = {role: devices_of(role, facts.get(role, EngineFacts())) for role in work.engines}
    names = dict.fromkeys(name for found in on.values() for name in found)
    return {name: tuple(role for role, found in on.items() if name in found) for name in names}


def occupancy_sums(rules: IdleRules, chains: Lives, calls: Calls) -> IdleSums:
    """What the time of each engine and device was spent on, by bin."""
    ready = _order(calls.ready)
    by_chain = ready[np.argsort(calls.chain[ready], kind="stable")]
    coming = _coming(
        by_chain, calls.chain, calls.engine, calls.ready, calls.end, chains.start, chains.end, chains.status != OPEN, rules.engines
    )
    cuts = np.unique(np.clip([*rules.edges.tolist(), rules.last_admission, rules.last_end], rules.edges[0], rules.edges[-1]))
    streams = tuple(map(np.ascontiguousarray, (cuts, chains.start, chains.end, calls.ready, calls.submit, calls.end, *coming[1:])))
    orders = tuple(ready if stream is calls.ready else _order(stream) for stream in streams)
    open_ns, overlap, spent = _walk(rules, streams, orders, calls.engine, calls.again, coming[0])
    return IdleSums(open_ns, overlap, spent)


def most_at_once(lives: Lives) -> int:
    """The most chains that ever lived at once."""
    return int(_open_at(lives)[1].max(initial=0))


def tail_s(work: RunTimes) -> float | None:
    """Seconds from the last moment at which as many chains lived as the batch size (or as ever did), with several replicas the earliest
    such moment of any, until the last chain of all ended. None without chains that are over."""
    lives, over = work.lives, work.lives.status != OPEN
    parts = [over & (lives.replica == number) for number in work.replicas] or [over]
    found = [_open_at(Lives(*(column[mine] for column in lives))) for mine in parts if mine.any()]
    if not found:
        return None
    return (max(int(instants[-1]) for instants, _ in found) - min(_full_until(work, *each) for each in found)) / 1e9


def _open_at(lives: Lives) -> tuple[Array, Array]:
    """The instants at which any chain begins or ends, and how many live from each until the next."""
    instants = np.concatenate([lives.start, lives.end])
    order = np.argsort(instants, kind="stable")
    instants, count = instants[order], np.cumsum(np.where(order < len(lives.start), 1, -1))
    last = np.diff(instants, append=instants[-1:] + 1) != 0
    return instants[last], count[last]


def _full_until(work: RunTimes, instants: Array, count: Array) -> int:
    """The last moment at which as many chains lived as the batch size, or as ever did."""
    enough = np.flatnonzero(count >= min(work.run.options.batch_size, max(int(count.max()), 1)))
    return int(instants[enough[-1] + 1] if len(enough) else instants[0])


def _order(instants: Array) -> Array:
    return np.argsort(instants, kind="stable").astype(np.int32)


F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """`function` in machine code, which is kept beside this file or in the user's cache folder, whichever can be written."""
    try:
        found: F = njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither can be
        found = njit(nogil=True)(function)
    return found


@compiled
def _walk(
    rules: IdleRules, streams: tuple[Array, ...], orders: tuple[Array, ...], engine: Array, again: Array, comes_to: Array
) -> tuple[Array, Array, Array]:
    """The fields of `IdleSums`. `streams` are the instants at which time is divided, chains start and end, calls are ready, sent and
    ended, and chains begin and cease to come to an engine; `orders` sort each of them."""
    engines, bins = rules.engines, len(rules.edges) - 1
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
            _add(rules, now, at - now, live, counts, causes, open_ns[:, place], overlap[place : place + 1], spent[:, :, place])
            now = at
        row = orders[stream][passed[stream]]
        passed[stream] += 1
        if stream == START:
            live += 1
        elif stream == END:
            live -= 1
        elif stream == READY:
            counts[WAITING, engine[row]] += 1
            counts[AGAIN, engine[row]] += again[row]
        elif stream == SENT:
            counts[WAITING, engine[row]] -= 1
            counts[AGAIN, engine[row]] -= again[row]
            counts[IN_FLIGHT, engine[row]] += 1
        elif stream == ENDED:
            counts[IN_FLIGHT, engine[row]] -= 1
        elif stream != CUT:
            counts[COMING, comes_to[row]] += 1 if stream == COMES else -1
    return open_ns, overlap, spent


@compiled
def _add(
    rules: IdleRules, now: int, length: int, live: int, counts: Array, causes: Array, open_ns: Array, overlap: Array, spent: Array
) -> None:
    """Add `length` nanoseconds from `now` on to the sums of their bin."""
    open_ns[0] += length * live
    busy = 0
    for e in range(rules.engines):
        open_ns[1 + e] += length * counts[IN_FLIGHT, e]
        open_ns[1 + rules.engines + e] += length * counts[WAITING, e]
        if counts[IN_FLIGHT, e]:
            cause = BUSY
            busy += 1
        elif not live:
            cause = TAIL if rules.last_admission <= now < rules.last_end else NOTHING_ADMITTED
        elif counts[AGAIN, e]:
            cause = RECOVERY
        elif counts[WAITING, e]:
            cause = BARRIER if rules.lockstep else ORCHESTRATION
        elif counts[COMING, e]:
            cause = ORCHESTRATION
        elif now >= rules.last_admission and live < rules.full:
            cause = TAIL
        else:
            cause = OTHER_ENGINE
        causes[e] = cause
        spent[e, cause] += length
    for device in range(len(rules.devices)):
        first = OTHER_ENGINE
        for e in range(rules.engines):
            if rules.devices[device, e]:
                first = min(first, causes[e])
        spent[rules.engines + device, first] += length
    if busy > 1:
        overlap[0] += length


@compiled
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
