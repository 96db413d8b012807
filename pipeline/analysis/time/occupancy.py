"""When each engine and device was busy, and why it was idle, over time in bins.

Every nanosecond of an engine is either busy or idle for exactly one cause, so that in every bin the parts add up to its length.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.resources import EngineFacts, devices_of, engine_facts
from pipeline.analysis.time.idle import BY_ENGINE, EARLY, LIVE, OVERLAP, IdleRules, occupancy_sums
from pipeline.analysis.time.spans import Spans, open_at
from pipeline.analysis.time.work import Calls, Lives, RunTimes

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
    """Sums of `idle_s` over all bins, by cause."""


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

    Of a run with several replicas chains and requests are those of all of them; seconds, of engines, devices and overlap, are means over
    the replicas, so that busy and idle ones still add up to the length of a bin. The batch size is that of each replica.
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
    rules, lives, calls = _rules(work, bins), work.lives, work.calls
    if not work.replicas:
        return _occupancy(work, rules, _sums(work, rules, lives, calls))
    sums = []
    for number in work.replicas:
        mine = lives.replica == number
        own = Calls(*(column[mine[calls.chain]] for column in calls))
        own = own._replace(chain=(np.cumsum(mine) - 1)[own.chain])
        sums.append(_sums(work, rules, Lives(*(column[mine] for column in lives)), own))
    return _occupancy(work, rules, np.sum(sums, axis=0))


def _rules(work: RunTimes, bins: int) -> IdleRules:
    alone = [1 << place for place in range(len(work.engines))]
    return IdleRules(
        edges=np.rint(np.linspace(0, work.span, bins + 1)).astype(np.int64),
        engines=len(alone),
        groups=np.array([*alone, *sorted(set(_devices(work).values()) - set(alone))], np.int64),
        lockstep=work.run.schedule == "lockstep",
        full=0,
        last_admission=0,
        last_end=int(work.lives.end.max(initial=EARLY)) if work.replicas else EARLY,
    )


def _sums(work: RunTimes, rules: IdleRules, lives: Lives, calls: Calls) -> Array:
    most = int(open_at(Spans(lives.start, lives.end))[1].max(initial=0))
    full = min(work.run.batch_size or most, most)
    return occupancy_sums(rules._replace(full=full, last_admission=int(lives.start.max(initial=0))), lives, calls)


def _occupancy(work: RunTimes, rules: IdleRules, sums: Array) -> Occupancy:
    edges, count, devices = rules.edges, len(work.replicas) or 1, _devices(work)
    width, span_s, in_flight = np.maximum(np.diff(edges), 1), work.span / 1e9, sums[BY_ENGINE:]
    overlap = sums[OVERLAP] if count == 1 else sums[OVERLAP] / count
    overlap_s = float(overlap.sum() / 1e9)
    spent = sums[BY_ENGINE + 2 * rules.engines :].reshape(len(rules.groups), 7, len(width))
    parts = {group: _parts(each if count == 1 else each / count) for group, each in zip(rules.groups.tolist(), spent, strict=True)}
    return Occupancy(
        span_s=span_s,
        edges_s=edges / 1e9,
        live=sums[LIVE] / width,
        engines={
            role: EngineOccupancy(in_flight=in_flight[place] / width, waiting=in_flight[rules.engines + place] / width, **parts[1 << place])
            for place, role in enumerate(work.engines)
        },
        devices={name: DeviceOccupancy(roles=_roles(work.engines, group), **parts[group]) for name, group in devices.items()},
        overlap=overlap / 1e9,
        overlap_s=overlap_s,
        overlap_share=overlap_s / span_s if span_s else 0.0,
        replicas=count,
    )


def _parts(spent: Array) -> dict[str, Any]:
    """The fields with busy and idle seconds of a group of engines that `spent` so many nanoseconds, by what and by bin."""
    *idle, busy = spent
    by_cause = dict(zip(CAUSES, idle, strict=True))
    return {
        "busy_s": busy / 1e9,
        "idle_s": {cause: each / 1e9 for cause, each in by_cause.items()},
        "total_busy_s": float(busy.sum() / 1e9),
        "total_idle_s": {cause: float(each.sum() / 1e9) for cause, each in by_cause.items()},
    }


def _roles(engines: Sequence[str], group: int) -> tuple[str, ...]:
    return tuple(role for place, role in enumerate(engines) if group >> place & 1)


def _devices(work: RunTimes) -> dict[str, int]:
    """The engines on each device, as a bit mask of their places."""
    devices: dict[str, int] = {}
    facts = engine_facts(work.run)
    for place, role in enumerate(work.engines):
        for name in devices_of(role, facts.get(role, EngineFacts())):
            devices[name] = devices.get(name, 0) | 1 << place
    return devices
