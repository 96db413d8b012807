"""When each engine and device was busy, and why it was idle: a run folder enters, one `Occupancy` leaves, over time in bins.

Every nanosecond of an engine is either busy or idle for exactly one cause, so that in every bin the parts add up to its length.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from pipeline.analysis.resources import EngineFacts, devices_of, engine_facts
from pipeline.analysis.time.calls import Calls, accumulate, is_long
from pipeline.analysis.time.occupancy_sweep import CallTimes, Rules, Sums, SweepLine, most_live
from pipeline.analysis.time.outline import Outline
from pipeline.analysis.time.timeline import Array

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


class EngineOccupancy(Struct, frozen=True, kw_only=True):
    """One engine over time; the arrays have one element for each bin."""

    in_flight: Array
    """Requests in flight, averaged over the bin."""
    waiting: Array
    """Requests in its lane, held back by a barrier or until they are sent again, averaged over the bin."""
    busy_s: Array
    """Seconds of the bin in which at least one request was in flight."""
    idle_s: dict[str, Array]
    """Seconds of the bin by each of `CAUSES`; with `busy_s` they are the bin's length."""
    total_busy_s: float
    """Sum of `busy_s` over all bins."""
    total_idle_s: dict[str, float]
    """Sums of `idle_s` over all bins, by cause."""


class DeviceOccupancy(Struct, frozen=True, kw_only=True):
    """One device over time: it is busy while any of its engines is; else the first cause that holds for any of them counts.

    The other fields are those of `EngineOccupancy`.
    """

    roles: tuple[str, ...]
    """Its engines."""
    busy_s: Array
    idle_s: dict[str, Array]
    total_busy_s: float
    total_idle_s: dict[str, float]


class Occupancy(Struct, frozen=True, kw_only=True):
    """A run over time, without the pauses between the sessions of a run that was taken up again."""

    span_s: float
    """Seconds from the start of the run until its end; of one that goes on or was killed, until the last event in the trace."""
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


def occupancy(run: Path, bins: int = BINS) -> Occupancy:
    """The occupancy of the run folder `run`; raises `InputError` when that has no trace that can be read."""
    [accumulator] = accumulate(run, lambda outline: (OccupancyAccumulator(outline, bins, long=is_long(run)),))
    return accumulator.result()


class OccupancyAccumulator:
    """Makes an `Occupancy` of the calls that are added; `long`: compile, see `calls.is_long`. See `Accumulator`."""

    columns: tuple[str, ...] = ()

    def __init__(self, outline: Outline, bins: int, *, long: bool) -> None:
        chains, devices = outline.chains, _devices(outline)
        alone = [1 << place for place in range(len(outline.engines))]
        most = most_live(chains)
        self._outline, self._devices = outline, devices
        self._rules = Rules(
            edges=np.rint(np.linspace(0, outline.span, bins + 1)).astype(np.int64),
            engines=len(outline.engines),
            groups=np.array([*alone, *sorted(set(devices.values()) - set(alone))], np.int64),
            lockstep=outline.run.schedule == "lockstep",
            full=min(outline.run.batch_size or most, most),
            last_admission=int(chains.start.max(initial=0)),
        )
        self._sweep = SweepLine(self._rules, chains, long=long)

    def add(self, calls: Calls) -> None:
        """See `Accumulator.add`."""
        self._sweep.add(CallTimes(*(getattr(calls, name) for name in CallTimes._fields)))

    def result(self) -> Occupancy:
        """The occupancy, when all calls have been added."""
        sums = self._sweep.sums()
        edges, engines = self._rules.edges, self._outline.engines
        width = np.maximum(np.diff(edges), 1)
        overlap_s, span_s = float(sums.overlap.sum() / 1e9), self._outline.span / 1e9
        parts = {group: _parts(sums, place) for place, group in enumerate(self._rules.groups.tolist())}
        return Occupancy(
            span_s=span_s,
            edges_s=edges / 1e9,
            live=sums.live / width,
            engines={
                role: EngineOccupancy(in_flight=sums.in_flight[place] / width, waiting=sums.waiting[place] / width, **parts[1 << place])
                for place, role in enumerate(engines)
            },
            devices={name: DeviceOccupancy(roles=_roles(engines, group), **parts[group]) for name, group in self._devices.items()},
            overlap=sums.overlap / 1e9,
            overlap_s=overlap_s,
            overlap_share=overlap_s / span_s if span_s else 0.0,
        )


def _parts(sums: Sums, group: int) -> dict[str, Any]:
    """The fields with busy and idle seconds, of the group of engines with the index `group`."""
    *idle, busy = sums.spent[group]
    by_cause = dict(zip(CAUSES, idle, strict=True))
    return {
        "busy_s": busy / 1e9,
        "idle_s": {cause: each / 1e9 for cause, each in by_cause.items()},
        "total_busy_s": float(busy.sum() / 1e9),
        "total_idle_s": {cause: float(each.sum() / 1e9) for cause, each in by_cause.items()},
    }


def _roles(engines: Sequence[str], group: int) -> tuple[str, ...]:
    return tuple(role for place, role in enumerate(engines) if group >> place & 1)


def _devices(outline: Outline) -> dict[str, int]:
    """The engines on each device, as a bit mask of their indices."""
    devices: dict[str, int] = {}
    facts = engine_facts(outline.run)
    for place, role in enumerate(outline.engines):
        for name in devices_of(role, facts.get(role, EngineFacts())):
            devices[name] = devices.get(name, 0) | 1 << place
    return devices
