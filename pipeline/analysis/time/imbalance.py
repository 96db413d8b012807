"""How evenly the replicas of a run worked, and the tail of such a run: its chains by replica and busy times enter, an `Imbalance` leaves.
Pure.

The tail of a run with several replicas begins when the first of them has fewer chains in flight than the batch size (or than it ever had)
because no more problems wait for it, which is after the last chain that began there. Of a replica that was lost it is after the last chain
that began anywhere: until then it lacked chains for another reason. The tail ends with the last chain of all. With one replica that is the
tail of a run of one process whose last chain was admitted into a full batch.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from pipeline.analysis.time.outline import Axis, Outline
from pipeline.analysis.time.stays import Lives, Stays
from pipeline.analysis.time.timeline import Array, ReplicaTime

CHUNK = 1 << 13
"""Instants that are looked at together."""


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


def imbalance(outline: Outline, stays: Stays, times: Mapping[int, ReplicaTime]) -> Imbalance:
    """How evenly the replicas of a run worked, whose chains were on them as `stays` say; `times` are theirs, by number."""
    span = tail(stays, outline.run.batch_size or None)
    tail_s = None if span is None else (span[1] - span[0]) / 1e9
    known = [times[number] for number in stays.numbers.tolist() if number in times]
    idle = None
    if span is not None and tail_s:
        idle = 1 - sum(_active_s(each, *span, outline.axis) for each in known) / (len(stays.numbers) * tail_s)
    return Imbalance(
        replicas=len(stays.numbers),
        busy=_over_mean([sum(each.busy_s.values()) for each in known]),
        chains=_over_mean([int((outline.chains.replica == number).sum()) for number in stays.numbers.tolist()]),
        tail_s=tail_s,
        tail_idle_share=idle,
    )


def tail(stays: Stays, batch_size: int | None) -> tuple[int, int] | None:
    """Start and end of the tail, nanoseconds of work, of chains that were on replicas as `stays` say; None where there are none."""
    if not len(stays.chain):
        return None
    begins = [_lacking(stays.lives(place), int(admitted), batch_size) for place, admitted in enumerate(stays.admitted.tolist())]
    return min(begins), int(stays.end.max())


def _lacking(lives: Lives, admitted: int, batch_size: int | None) -> int:
    """The first moment, not before `admitted`, at which fewer than `batch_size` of these chains live, or than the most that ever did."""
    times, live = _live(lives.start, lives.end)
    full = min(batch_size or len(lives.start), max(int(live.max(initial=0)), 1))
    settled = np.append(times[1:] != times[:-1], True)[: len(times)]  # after all that happens at one instant
    times, live = times[settled], live[settled]
    place = int(np.searchsorted(times, admitted, "right"))
    if not place or live[place - 1] < full:
        return admitted
    return int(times[place:][live[place:] < full][0])  # which there is: at the end none lives


def _live(start: Array, end: Array) -> tuple[Array, Array]:
    """Every start and end of these chains in order, and how many live from it on; at one instant ends come before starts."""
    times = np.concatenate([start, end])
    signs = np.concatenate([np.ones(len(start), int), -np.ones(len(end), int)])
    order = np.lexsort((signs, times))
    return times[order], np.cumsum(signs[order])


def leaves_full(start: Array, end: Array, batch_size: int | None) -> int | None:
    """The last moment at which `batch_size` of these chains lived, or the most that ever did where these are fewer; None without chains.

    `start` and `end` have the starts and the ends, each in order. At one instant ends come before starts.
    """
    chains = len(start)
    if not chains:
        return None
    most = max(int((np.arange(at, at + len(some)) + 1 - np.searchsorted(end, some, "right")).max()) for at, some in _chunks(start))
    full = min(batch_size or chains, max(most, 1))
    for at, some in reversed(_chunks(end)):
        left = np.searchsorted(start, some) - np.arange(at, at + len(some))  # how many live when each of these ends, itself included
        if len(found := np.flatnonzero(left == full)):
            return int(some[found[-1]])
    return int(min(start[0], end[0]))


def _chunks(times: Array) -> list[tuple[int, Array]]:
    """Views of `times`, some thousand each, and where they begin."""
    return [(at, times[at : at + CHUNK]) for at in range(0, len(times), CHUNK)]


def _active_s(mine: ReplicaTime, since: int, until: int, axis: Axis) -> float:
    """Seconds of this span, in nanoseconds of work, in which an engine of the replica was busy."""
    starts, ends = (axis.of(side) for side in mine.active)
    return float(np.maximum(np.minimum(ends, until) - np.maximum(starts, since), 0).sum()) / 1e9


def _over_mean(values: Sequence[float]) -> float | None:
    return max(values) * len(values) / total if (total := sum(values)) else None
