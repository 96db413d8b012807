"""When no chain waits any more: which replicas should give chains back, so that others solve them sooner. Pure.

A chain that moves is computed again up to its last recorded call, at the cost of one prefill of its context. So few move: those of a
replica that is much slower than the others, and those of a full replica while another one is nearly empty.
"""

from collections.abc import Sequence
from math import ceil
from statistics import median

from msgspec import Struct

SLOW = 0.5
"""A replica is slow whose chains get fewer tokens a second than this share of the median replica's chains."""
FULLER = 1.5
"""Chains move from a replica that has more than this many times as many as another one would have with one more."""


class Load(Struct, frozen=True, kw_only=True):
    """One replica that solves."""

    number: int
    chains: int
    """Chains that it has, waiting ones included."""
    batch_size: int
    """Chains that it may have in flight."""
    tokens_per_s: float | None
    """Tokens a second that its engines write for one of its chains; None where that is not known yet."""


class Move(Struct, frozen=True):
    """Chains that a replica should give back."""

    replica: int
    count: int
    slow: bool
    """Whether that is because it is slow: none of them should come back to it."""


def moves(loads: Sequence[Load]) -> list[Move]:
    """Which replicas should give back how many chains, if no chain waits for a replica."""
    known = [load.tokens_per_s for load in loads if load.tokens_per_s is not None]
    bound = SLOW * median(known) if len(known) > 1 else 0.0
    slow = [load for load in loads if load.tokens_per_s is not None and load.tokens_per_s < bound]
    good = [load for load in loads if load not in slow]
    room = sum(max(0, load.batch_size - load.chains) for load in good)
    found = []
    for load in sorted(slow, key=lambda each: each.tokens_per_s or 0.0):
        if count := min(load.chains, room):
            found.append(Move(load.number, count, slow=True))
            room -= count
    return found or _evened(good)


def _evened(loads: Sequence[Load]) -> list[Move]:
    """Moves from replicas with many chains to those with few, of about the same speed."""
    if len(loads) < 2:
        return []
    fewest = min(loads, key=lambda load: load.chains)
    most = max(loads, key=lambda load: load.chains)
    if most.chains <= FULLER * (fewest.chains + 1):
        return []
    level = ceil(sum(load.chains for load in loads) / len(loads))
    lacking = sum(max(0, min(level, load.batch_size) - load.chains) for load in loads)
    found = []
    for load in sorted(loads, key=lambda each: -each.chains):
        if load.chains > FULLER * (fewest.chains + 1) and (count := min(load.chains - level, lacking)) > 0:
            found.append(Move(load.number, count, slow=False))
            lacking -= count
    return found
