"""Busy time and overlap of engines, and the tail of a run: a run on its axis enters, one `Timeline` leaves.

An engine is busy while at least one request is in flight to it; each replica has its own engines.

The tail of a run begins at the last moment at which as many chains lived as the batch size (or as ever did), with several replicas at the
earliest such moment of any. It ends with the last chain of all.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.time.work import OPEN, Lives, RunTimes


class EngineTime(Struct, frozen=True):
    """One engine over the span of the run; of a run with several replicas the mean of its engines of this role, but for the requests."""

    busy_s: float
    """Seconds in which at least one request was in flight."""
    busy_share: float
    """`busy_s` over the span, 0 to 1."""
    mean_in_flight: float
    """Requests in flight, averaged over the span; of several replicas those of all."""


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
    stages_s: dict[str, float]
    """By the stage's name, the seconds that its requests were in flight, added up over the requests."""
    tail_s: float | None
    """Seconds of the tail; null without chains."""
    replicas: int
    """Those that have rows; 1 where the process itself had the engines."""


def timeline(work: RunTimes) -> Timeline:
    """The timeline of a run."""
    flights = work.flights
    span_s = float(flights.end.max() - flights.submit.min()) / 1e9 if len(flights.end) else 0.0
    share = 1 / span_s if span_s else 0.0
    busy = [_busy(work, number) for number in work.replicas or (None,)]
    busy_s = {role: _mean([each[0][place] for each in busy]) for place, role in enumerate(work.engines)}
    overlap_s = _mean([overlap for _, overlap in busy])
    in_flight_s = _in_flight_s(work, flights.engine, work.engines)
    return Timeline(
        span_s=span_s,
        engines={role: EngineTime(busy_s[role], busy_s[role] * share, seconds * share) for role, seconds in in_flight_s.items()},
        overlap_s=overlap_s,
        overlap_share=overlap_s * share,
        stages_s=_in_flight_s(work, flights.stage, work.stages),
        tail_s=_tail_s(work),
        replicas=len(busy),
    )


def _busy(work: RunTimes, replica: int | None) -> tuple[list[float], float]:
    """Seconds in which each engine was busy, and in which two or more were; on one replica of several."""
    flights, busy, began, ended = work.flights, list[float](), list[Array](), list[Array]()
    for place in range(len(work.engines)):
        mine = (flights.engine == place) & (True if replica is None else flights.replica == replica)
        instants, count = open_at(flights.submit[mine], flights.end[mine])
        some = count > 0
        busy.append(float(np.diff(instants)[some[:-1]].sum() / 1e9))
        began.append(instants[some & ~np.roll(some, 1)])
        ended.append(instants[~some & np.roll(some, 1)])
    instants, count = open_at(np.concatenate(began), np.concatenate(ended))
    return busy, float(np.diff(instants)[count[:-1] > 1].sum() / 1e9)


def open_at(since: Array, until: Array) -> tuple[Array, Array]:
    """The instants at which any span begins or ends, and how many are open from each until the next."""
    instants = np.concatenate([since, until])
    order = np.argsort(instants, kind="stable")
    instants, count = instants[order], np.cumsum(np.where(order < len(since), 1, -1))
    last = np.diff(instants, append=instants[-1:] + 1) != 0
    return instants[last], count[last]


def most_at_once(lives: Lives) -> int:
    """The most chains that ever lived at once."""
    return int(open_at(lives.start, lives.end)[1].max(initial=0))


def _in_flight_s(work: RunTimes, of: Array, names: Sequence[str]) -> dict[str, float]:
    """The seconds that calls were in flight, by what they are `of`, a place among `names`."""
    calls, length = np.zeros((2, len(names)), np.int64)
    np.add.at(calls, of, 1)
    np.add.at(length, of, work.flights.end - work.flights.submit)
    return {name: float(length[place] / 1e9) for place, name in enumerate(names) if calls[place]}


def _tail_s(work: RunTimes) -> float | None:
    """The tail of the chains that are over."""
    lives, over = work.lives, work.lives.status != OPEN
    parts = [over & (lives.replica == number) for number in work.replicas] or [over]
    found = [open_at(lives.start[mine], lives.end[mine]) for mine in parts if mine.any()]
    if not found:
        return None
    return (max(int(instants[-1]) for instants, _ in found) - min(_full_until(work, *each) for each in found)) / 1e9


def _full_until(work: RunTimes, instants: Array, count: Array) -> int:
    """The last moment at which as many chains lived as the batch size, or as ever did."""
    full = min(work.run.options.batch_size, max(int(count.max()), 1))
    enough = np.flatnonzero(count >= full)
    return int(instants[enough[-1] + 1] if len(enough) else instants[0])


def _mean(seconds: Sequence[float]) -> float:
    return sum(seconds) / len(seconds)
