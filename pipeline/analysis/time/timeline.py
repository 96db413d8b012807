"""Busy time and overlap of engines, the tail of a run, and how evenly its replicas worked: a run on its axis enters, one `Timeline` leaves.

An engine is busy while at least one request is in flight to it; each replica has its own engines.

The tail of a run of one process begins at the last moment at which as many chains lived as the batch size (or as ever did). That of a run
with several replicas begins when the first of them has fewer chains in flight than that because no more problems wait for it, which is
after the last chain that began there. Of a replica that was lost it is after the last chain that began anywhere: until then it lacked
chains for another reason. The tail ends with the last chain of all.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import NO_REPLICA, Array
from pipeline.analysis.time.spans import Spans, open_at, together, union, while_open
from pipeline.analysis.time.work import OPEN, Lives, RunTimes, Stays


class EngineTime(Struct, frozen=True):
    """One engine over the span of the run; of a run with several replicas the mean of its engines of this role, but for the requests."""

    busy_s: float
    """Seconds in which at least one request was in flight."""
    busy_share: float
    """`busy_s` over the span, 0 to 1."""
    mean_in_flight: float
    """Requests in flight, averaged over the span; of several replicas those of all."""


class StageTime(Struct, frozen=True):
    """One stage over the span of the run."""

    stage: str
    calls: int
    in_flight_s: float
    """Seconds that its requests were in flight, added up over the requests."""


class ReplicaTime(Struct, frozen=True):
    """One of several replicas, or the one process of a run."""

    busy_s: dict[str, float]
    """Seconds in which at least one request was in flight, by role."""
    overlap_s: float
    """Seconds in which two or more of its engines were busy."""


class Imbalance(Struct, frozen=True, kw_only=True):
    """How evenly several replicas worked. A ratio is null where its mean is 0, a time where no chain was on a replica."""

    replicas: int
    """Those that were started or have rows."""
    busy: float | None
    """The most busy seconds of a replica, added up over its engines, over the mean of all replicas: 1 where all are equal."""
    chains: float | None
    """The most chains that ended on a replica over the mean of all replicas."""
    tail_s: float | None
    """Seconds of the tail, without pauses between sessions."""
    tail_idle_share: float | None
    """The share of the tail in which a replica had no request at any engine, mean of all replicas, 0 to 1."""


class Timeline(Struct, frozen=True, kw_only=True):
    """Busy time, overlap and time in flight of a run, without pauses between sessions."""

    span_s: float
    """Seconds from the first request that was sent until the last that ended."""
    engines: dict[str, EngineTime]
    """By role."""
    overlap_s: float
    """Seconds in which two or more engines were busy; of several replicas the mean of each one's seconds with its own engines."""
    overlap_share: float
    """`overlap_s` over the span, 0 to 1."""
    stages: dict[str, StageTime]
    """By the stage's name."""
    tail_s: float | None
    """Seconds of the tail; null without chains."""
    replicas: dict[int, ReplicaTime] = {}
    """Of a run with several replicas each one alone, by its number; else empty."""
    imbalance: Imbalance | None = None
    """Of a run with several replicas how evenly they worked."""


class _InFlight(Struct, frozen=True):
    calls: int
    seconds: float


def timeline(work: RunTimes) -> Timeline:
    """The timeline of a run; calls of a run with several replicas that name none count only as requests in flight."""
    flights = work.flights
    span_s = float(flights.end.max() - flights.submit.min()) / 1e9 if len(flights.end) else 0.0
    share = 1 / span_s if span_s else 0.0
    busy = _busy(work)
    replicas = {number: _replica(each) for number, each in busy.items()}
    in_flight = _in_flight(work, flights.engine, work.engines)
    busy_s = {role: _mean([one.busy_s.get(role, 0.0) for one in replicas.values()]) for role in in_flight}
    overlap_s = _mean([one.overlap_s for one in replicas.values()])
    even = None if work.stays is None else _imbalance(work, work.stays, busy, replicas)
    return Timeline(
        span_s=span_s,
        engines={role: EngineTime(busy_s[role], busy_s[role] * share, each.seconds * share) for role, each in in_flight.items()},
        overlap_s=overlap_s,
        overlap_share=overlap_s * share,
        stages={name: StageTime(name, each.calls, each.seconds) for name, each in _in_flight(work, flights.stage, work.stages).items()},
        tail_s=even.tail_s if even else _tail_s(work),
        replicas=replicas if even else {},
        imbalance=even,
    )


def _busy(work: RunTimes) -> dict[int, dict[str, Spans]]:
    """When each engine was busy, by the replica's number; of a run of one process or replica that of its calls, whatever its number."""
    flights = work.flights
    numbers = [*work.stays.admitted] if work.stays else [int(flights.replica.max(initial=NO_REPLICA))]
    return {
        number: {
            role: union(Spans(flights.submit[mine], flights.end[mine]))
            for place, role in enumerate(work.engines)
            if (mine := (flights.engine == place) & (flights.replica == number)).any()
        }
        for number in numbers
    }


def _in_flight(work: RunTimes, of: Array, names: Sequence[str]) -> dict[str, _InFlight]:
    """Calls, and the seconds that they were in flight, by what they are `of`, a place among `names`."""
    calls, length = np.zeros((2, len(names)), np.int64)
    np.add.at(calls, of, 1)
    np.add.at(length, of, work.flights.end - work.flights.submit)
    return {name: _InFlight(int(calls[place]), float(length[place] / 1e9)) for place, name in enumerate(names) if calls[place]}


def _replica(busy: Mapping[str, Spans]) -> ReplicaTime:
    overlap = while_open(together(*busy.values()), 2, len(busy))
    return ReplicaTime({role: each.length / 1e9 for role, each in busy.items()}, overlap.length / 1e9)


def _imbalance(work: RunTimes, stays: Stays, busy: Mapping[int, Mapping[str, Spans]], times: Mapping[int, ReplicaTime]) -> Imbalance:
    lives = {number: stays.lives(number) for number in stays.admitted}
    begins = [_lacks_from(work, lives[number], admitted) for number, admitted in stays.admitted.items()]
    tail_s = idle = None
    if len(stays.columns["end"]):
        since, until = min(begins), int(max(stays.columns["start"].max(), stays.columns["end"].max()))
        tail_s = (until - since) / 1e9
        active = sum(union(*(each.within(since, until) for each in mine.values())).length for mine in busy.values()) / 1e9
        idle = 1 - active / (len(times) * tail_s) if tail_s else None
    chains = dict.fromkeys(times, 0) | dict(work.db.stream(_CHAINS))
    return Imbalance(
        replicas=len(times),
        busy=_over_mean([sum(each.busy_s.values()) for each in times.values()]),
        chains=_over_mean(list(chains.values())),
        tail_s=tail_s,
        tail_idle_share=idle,
    )


def _lacks_from(work: RunTimes, lives: Lives, admitted: int) -> int:
    """From when on a replica, at which the last chain was `admitted` then, had fewer chains than the batch size for lack of problems."""
    instants, count = open_at(Spans(lives.start, lives.end))
    if not len(instants) or instants[0] > admitted:
        return admitted
    full = min(work.run.batch_size or len(work.lives.start), max(int(count.max()), 1))
    lacking = (count < full) & (np.append(instants[1:], np.iinfo(np.int64).max) > admitted)
    return int(np.maximum(instants[lacking], admitted)[0])


def _tail_s(work: RunTimes) -> float | None:
    """The tail of the chains that are over."""
    over = work.lives.status != OPEN
    instants, count = open_at(Spans(work.lives.start[over], work.lives.end[over]))
    if not len(instants):
        return None
    full = min(work.run.batch_size or len(work.lives.start), max(int(count.max()), 1))
    enough = np.flatnonzero(count >= full)
    return float(instants[-1] - (instants[enough[-1] + 1] if len(enough) else instants[0])) / 1e9


def _mean(seconds: Sequence[float]) -> float:
    return sum(seconds) / len(seconds)


def _over_mean(values: Sequence[float]) -> float | None:
    return max(values) * len(values) / total if (total := sum(values)) else None


_CHAINS = "SELECT replica, count(*) FROM lives WHERE replica IS NOT NULL GROUP BY replica"
