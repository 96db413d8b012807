"""When each engine and device was busy, and why it was idle: a run folder enters, one `Occupancy` leaves, over time in bins.

Every nanosecond of an engine is either busy or idle for exactly one cause, so that in every bin the parts add up to its length.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from pipeline.analysis.resources import EngineFacts, devices_of, engine_facts
from pipeline.analysis.time.calls import Calls, accumulate, is_long
from pipeline.analysis.time.occupancy_sweep import EARLY, CallTimes, Rules, Sums, SweepLine, most_live
from pipeline.analysis.time.outline import Chains, Outline
from pipeline.analysis.time.stays import Lives, Stays, read_stays
from pipeline.analysis.time.timeline import Array, replicas_of

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
  of several replicas: the last chain began there (`Stays.admitted`), and fewer live there, or none while others still have some.
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
    """A run over time, without the pauses between the sessions of a run that was resumed.

    Of a run with several replicas chains and requests are those of all of them; seconds, of engines, devices and overlap, are means over
    the replicas, so that busy and idle ones still add up to the length of a bin. A replica whose engines are not there, because it was lost
    or is yet to start, has no chain and counts as idle. The batch size is that of each replica.
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
    replicas: dict[int, "Occupancy"] = {}
    """Of a run with several replicas each one alone, by its number; else empty."""


def occupancy(run: Path, bins: int = BINS) -> Occupancy:
    """The occupancy of the run folder `run`; raises `InputError` when that has no trace that can be read."""
    long = is_long(run)
    [accumulator] = accumulate(run, lambda outline: (OccupancyAccumulator(outline, bins, long=long, stays=read_stays(run, outline)),))
    return accumulator.result()


class OccupancyAccumulator:
    """Makes an `Occupancy` of the calls that are added; `long`: compile, see `calls.is_long`. See `Accumulator`.

    `stays`, of a run with several replicas, divide its calls among them; calls that say no replica are left out then.
    """

    def __init__(self, outline: Outline, bins: int, *, long: bool, stays: Stays | None = None) -> None:
        self._outline, self._stays, self._devices = outline, stays, _devices(outline)
        self.columns: tuple[str, ...] = () if stays is None else ("replica",)
        lives: list[Chains | Lives] = [outline.chains]
        if stays is not None:
            lives = [stays.lives(place) for place in range(len(stays.numbers))]
        self._rules = self._rules_of(bins)
        admitted = [self._rules.last_admission] if stays is None else stays.admitted.tolist()
        rules = (self._rules._replace(full=_full(outline, each), last_admission=last) for each, last in zip(lives, admitted, strict=True))
        self._sweeps = [SweepLine(rule, each, long=long) for rule, each in zip(rules, lives, strict=True)]

    def _rules_of(self, bins: int) -> Rules:
        outline, chains = self._outline, self._outline.chains
        alone = [1 << place for place in range(len(outline.engines))]
        return Rules(
            edges=np.rint(np.linspace(0, outline.span, bins + 1)).astype(np.int64),
            engines=len(outline.engines),
            groups=np.array([*alone, *sorted(set(self._devices.values()) - set(alone))], np.int64),
            lockstep=outline.run.schedule == "lockstep",
            full=0,
            last_admission=int(chains.start.max(initial=0)),
            last_end=EARLY if self._stays is None else int(chains.end.max(initial=EARLY)),
        )

    def add(self, calls: Calls) -> None:
        times = CallTimes(*(getattr(calls, name) for name in CallTimes._fields))
        if self._stays is None:
            self._sweeps[0].add(times)
            return
        for place, rows in rows_by_replica(self._stays, replicas_of(calls.table)):
            mine = CallTimes(*(column[rows] for column in times))
            self._sweeps[place].add(mine._replace(chain=self._stays.places(place, mine.chain)))

    def result(self) -> Occupancy:
        """The occupancy, when all calls have been added."""
        parts = [sweep.sums() for sweep in self._sweeps]
        if self._stays is None:
            return self._occupancy(parts[0])
        together = Sums(*(np.sum(columns, axis=0) for columns in zip(*parts, strict=True)))
        replicas = {int(number): self._occupancy(each) for number, each in zip(self._stays.numbers, parts, strict=True)}
        return self._occupancy(together, replicas)

    def _occupancy(self, sums: Sums, replicas: Mapping[int, Occupancy] | None = None) -> Occupancy:
        edges, engines, count = self._rules.edges, self._outline.engines, len(replicas or (1,))
        width = np.maximum(np.diff(edges), 1)
        overlap_s, span_s = float(sums.overlap.sum() / count / 1e9), self._outline.span / 1e9
        parts = {group: _parts(sums, place, count) for place, group in enumerate(self._rules.groups.tolist())}
        return Occupancy(
            span_s=span_s,
            edges_s=edges / 1e9,
            live=sums.live / width,
            engines={
                role: EngineOccupancy(in_flight=sums.in_flight[place] / width, waiting=sums.waiting[place] / width, **parts[1 << place])
                for place, role in enumerate(engines)
            },
            devices={name: DeviceOccupancy(roles=_roles(engines, group), **parts[group]) for name, group in self._devices.items()},
            overlap=sums.overlap / count / 1e9,
            overlap_s=overlap_s,
            overlap_share=overlap_s / span_s if span_s else 0.0,
            replicas=dict(replicas or {}),
        )


def rows_by_replica(stays: Stays, replica: Array) -> Iterator[tuple[int, Array]]:
    """Of rows on these replicas: for each replica that has some its place in `stays.numbers` and the indices of its rows, in order."""
    order = np.argsort(replica, kind="stable")
    cuts = np.searchsorted(replica[order], stays.numbers), np.searchsorted(replica[order], stays.numbers, "right")
    for place, (since, until) in enumerate(zip(*(each.tolist() for each in cuts), strict=True)):
        if since < until:
            yield place, order[since:until]


def _full(outline: Outline, chains: Chains | Lives) -> int:
    """The most chains that may live at once where these live."""
    most = most_live(chains)
    return min(outline.run.batch_size or most, most)


def _parts(sums: Sums, group: int, count: int) -> dict[str, Any]:
    """The fields with busy and idle seconds, of the group of engines with the index `group`; `sums` are those of `count` replicas."""
    *idle, busy = sums.spent[group] if count == 1 else sums.spent[group] / count
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
