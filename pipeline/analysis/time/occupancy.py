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

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from pipeline.analysis.facts import EngineFacts, devices_of, engine_facts
from pipeline.analysis.time.work import OPEN, Array, Calls, Lives, RunTimes

if TYPE_CHECKING:
    from pipeline.analysis.time.walk import IdleSums

BINS = 600
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


def occupancy(work: RunTimes, bins: int = BINS) -> Occupancy:
    """The occupancy of a run, with time divided into `bins`."""
    walk = import_module("pipeline.analysis.time.walk")  # with numba, which takes 60 MiB: a run needs it at its end alone
    lives, calls, devices = work.lives, work.calls, _devices(work)
    edges = np.rint(np.linspace(0, work.span, bins + 1)).astype(np.int64)
    on = np.array([[role in roles for role in work.engines] for roles in devices.values()], bool).reshape(len(devices), len(work.engines))
    parts, last_end = [(lives, calls)], -1
    if work.replicas:
        parts, last_end = [_of_replica(number, lives, calls) for number in work.replicas], int(lives.end.max(initial=-1))
    sums = []
    for some, theirs in parts:
        most = most_at_once(some)
        rules = walk.IdleRules(
            edges=edges,
            engines=len(work.engines),
            devices=on,
            lockstep=work.run.options.schedule == "lockstep",
            full=min(work.run.options.batch_size, most),
            last_admission=int(some.start.max(initial=0)),
            last_end=last_end,
        )
        sums.append(walk.occupancy_sums(rules, some, theirs))
    return _occupancy(work, edges, devices, walk.IdleSums(*(sum(each[1:], each[0]) for each in zip(*sums, strict=True))), len(parts))


def _of_replica(number: int, lives: Lives, calls: Calls) -> tuple[Lives, Calls]:
    mine = lives.replica == number
    own = Calls(*(column[mine[calls.chain]] for column in calls))
    return Lives(*(column[mine] for column in lives)), own._replace(chain=(np.cumsum(mine) - 1)[own.chain])


def _occupancy(work: RunTimes, edges: Array, devices: dict[str, tuple[str, ...]], sums: "IdleSums", replicas: int) -> Occupancy:
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
