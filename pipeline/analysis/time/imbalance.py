"""How evenly the replicas of a run worked, and the tail of such a run: columns of chains and busy times enter, an `Imbalance` leaves. Pure.

The tail of a run with several replicas begins when no problem waits any more, which is when the last chain was admitted anywhere, and the
first replica has fewer chains in flight than the batch size (or than it ever had). It ends with the last chain. A chain counts for the
replica on which it ended. With one replica that is the tail of a run of one process whose last chain was admitted into a full batch.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from pipeline.analysis.time.timeline import NO_REPLICA, Array, Pauses, ReplicaTime, worked_s


class Imbalance(Struct, frozen=True, kw_only=True):
    """How evenly several replicas worked. A ratio is null where its mean is 0, a time where no chain ended on a replica."""

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


def imbalance(
    start: Array, end: Array, replica: Array, batch_size: int | None, times: Mapping[int, ReplicaTime], pauses: Pauses = ()
) -> Imbalance:
    """How evenly the replicas of `times` worked; `start` and `end` (ns UTC) and `replica` are those of the chains, `batch_size` of each
    replica."""
    span = tail(start, end, replica, list(times), batch_size)
    tail_s = None if span is None else worked_s(*span, pauses)
    ended = [int((replica == number).sum()) for number in times]
    idle = None if span is None or not tail_s else 1 - sum(_active_s(each, *span) for each in times.values()) / (len(times) * tail_s)
    return Imbalance(
        replicas=len(times),
        busy=_over_mean([sum(each.busy_s.values()) for each in times.values()]),
        chains=_over_mean(ended),
        tail_s=tail_s,
        tail_idle_share=idle,
    )


def tail(start: Array, end: Array, replica: Array, numbers: Sequence[int], batch_size: int | None) -> tuple[int, int] | None:
    """Start and end of the tail, ns UTC, of a run with the replicas `numbers`; None where no chain was on a replica."""
    if not (known := replica != NO_REPLICA).any():
        return None
    admitted, over = int(start[known].max()), int(end[known].max())
    leaves = [leaves_full(start[replica == number], end[replica == number], batch_size) for number in numbers]
    return min(max(admitted, admitted if each is None else each) for each in leaves), over


def leaves_full(start: Array, end: Array, batch_size: int | None) -> int | None:
    """The last moment at which `batch_size` of these chains lived, or the most that ever did where these are fewer; None without chains."""
    if not len(start):
        return None
    times = np.concatenate([start, end])
    signs = np.concatenate([np.ones(len(start), int), -np.ones(len(end), int)])
    order = np.lexsort((signs, times))  # at one instant ends come before starts
    live = np.cumsum(signs[order])
    full = np.flatnonzero(live >= min(batch_size or len(start), max(int(live.max()), 1)))
    return int(times[order][full[-1] + 1] if len(full) else times.min())


def _active_s(times: ReplicaTime, since: int, until: int) -> float:
    """Seconds of this span in which an engine of the replica was busy."""
    starts, ends = times.active
    return float(np.maximum(np.minimum(ends, until) - np.maximum(starts, since), 0).sum()) / 1e9


def _over_mean(values: Sequence[float]) -> float | None:
    return max(values) * len(values) / total if (total := sum(values)) else None
