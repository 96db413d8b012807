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

from typing import Any

import numpy as np
from msgspec import Struct

from pipeline.analysis.facts import EngineFacts, devices_of, engine_facts, replica_count
from pipeline.analysis.time.walk import IdleRules, occupancy_sums
from pipeline.analysis.time.work import Array, Lives, RunTimes

BINS = 600
CAUSES = ("nothing_admitted", "recovery", "barrier", "orchestration", "tail", "other_engine")
"""Why an engine without a request is idle; at any instant the first cause that holds:

- `nothing_admitted`: no chain lives.
- `recovery`: a call to it failed and waits to be sent again: the engine is being restarted, or is given fewer calls. This comes
  before the next two causes, because its other calls are held back for the same reason.
- `barrier`: in a lockstep run, a call to it is ready and waits for the rest of its round.
- `orchestration`: a call to it is ready and was not sent, or a chain is between its calls and the next one is for it. A chain
  that has made its last call and has not ended keeps the next chain from being admitted, and counts for every engine.
- `tail`: the last chain was admitted and fewer live than the batch size (or than ever lived at once): too little work is left.
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

    On several replicas an engine is busy while it is on any of them, and as many chains may live as on all of them.
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


def occupancy(work: RunTimes, bins: int = BINS) -> Occupancy:
    """The occupancy of a run, with time divided into `bins`."""
    lives, options, devices = work.lives, work.run.options, _devices(work)
    edges = np.rint(np.linspace(0, work.span, bins + 1)).astype(np.int64)
    rules = IdleRules(
        edges=edges,
        engines=len(work.engines),
        devices=np.array([[role in on for role in work.engines] for on in devices.values()], bool).reshape(-1, len(work.engines)),
        lockstep=options.schedule == "lockstep",
        full=min(options.batch_size * replica_count(work.run), _most_at_once(lives)),
        last_admission=int(lives.start.max(initial=0)),
    )
    sums = occupancy_sums(rules, lives, work.read_calls())
    (live, in_flight, waiting), span_s = np.split(sums.open / np.maximum(np.diff(edges), 1), [1, 1 + len(work.engines)]), work.span / 1e9
    parts = [_parts(each) for each in sums.spent]
    overlap_s = float(sums.overlap.sum() / 1e9)
    return Occupancy(
        span_s=span_s,
        edges_s=edges / 1e9,
        live=live[0],
        engines={
            role: EngineOccupancy(in_flight=in_flight[place], waiting=waiting[place], **parts[place])
            for place, role in enumerate(work.engines)
        },
        devices={
            name: DeviceOccupancy(roles=roles, **part)
            for (name, roles), part in zip(devices.items(), parts[len(work.engines) :], strict=True)
        },
        overlap=sums.overlap / 1e9,
        overlap_s=overlap_s,
        overlap_share=overlap_s / span_s if span_s else 0.0,
    )


def _parts(spent: Array) -> dict[str, Any]:
    """The fields of `Spent`, from nanoseconds by what they are spent on and bin."""
    (busy, *idle), (total_busy, *total_idle) = spent / 1e9, (spent.sum(axis=1) / 1e9).tolist()
    idle_s, total_idle_s = (dict(zip(CAUSES, each, strict=True)) for each in (idle, total_idle))
    return {"busy_s": busy, "idle_s": idle_s, "total_busy_s": total_busy, "total_idle_s": total_idle_s}


def _devices(work: RunTimes) -> dict[str, tuple[str, ...]]:
    """The engines on each device."""
    facts = engine_facts(work.run)
    on = {role: devices_of(role, facts.get(role, EngineFacts())) for role in work.engines}
    names = dict.fromkeys(name for found in on.values() for name in found)
    return {name: tuple(role for role, found in on.items() if name in found) for name in names}


def _most_at_once(lives: Lives) -> int:
    """The most chains that ever lived at once."""
    starts, ends = np.sort(lives.start), np.sort(lives.end)
    return int((np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, "right")).max(initial=0))
