"""What an occupancy is made of, in whole nanoseconds: the terms that are measured by, the sums, and the plain way to them.

The plain way looks at the stretches between instants at which anything changes, all at once, in arrays; what chains do between
their calls it finds chain by chain. It holds everything in memory; `occupancy_sweep` comes to the same in one pass.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.analysis.time.outline import OPEN, Chains
from pipeline.analysis.time.timeline import Array

NOTHING_ADMITTED, RECOVERY, BARRIER, ORCHESTRATION, TAIL, OTHER_ENGINE, BUSY = range(7)
SAME_NS = 2
"""Calls of one chain whose ready times are as near to each other were ready together: they are known by differences."""


LATE = 1 << 62


class Terms(NamedTuple):
    """What is measured, and by which rules."""

    edges: Array
    """Of the bins, ns."""
    engines: int
    groups: Array
    """Sets of engines, as bits: each engine alone, in order, and then what shares a device."""
    lockstep: bool
    full: int
    """As many live chains are as many as there may be."""
    last_admission: int
    """When the last chain started."""


class Sums(NamedTuple):
    """Nanoseconds by bin, which is the last dimension."""

    live: Array
    """Of chains, added up."""
    overlap: Array
    in_flight: Array
    """Of requests, added up; by engine."""
    waiting: Array
    spent: Array
    """By group, and by what the time was: a cause of idleness, or `BUSY`."""


class Moments(NamedTuple):
    """Calls in the order of their ends, as in `calls.Calls`."""

    chain: Array
    engine: Array
    again: Array
    ready: Array
    submit: Array
    end: Array


def joined(parts: Sequence[Moments]) -> Moments:
    """All calls of `parts`, which are in the order of time."""
    kinds = (np.int64, np.int32, np.bool_, np.int64, np.int64, np.int64)
    none = Moments(*(np.empty(0, kind) for kind in kinds))
    return Moments(*(np.concatenate(column) for column in zip(none, *parts, strict=True)))


def no_sums(terms: Terms) -> Sums:
    """Zeros."""
    bins, groups = len(terms.edges) - 1, len(terms.groups)
    shapes = [(bins,), (bins,), (terms.engines, bins), (terms.engines, bins), (groups, 7, bins)]
    return Sums(*(np.zeros(shape, np.int64) for shape in shapes))


def most_live(chains: Chains) -> int:
    """How many chains lived at once."""
    starts, ends = np.sort(chains.start), np.sort(chains.end)
    return int((np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, "right")).max(initial=0))


def plain_sums(terms: Terms, chains: Chains, calls: Moments) -> Sums:
    """The sums over all calls of a run."""
    return _Plain(terms, chains, calls).sums()


class _Plain:
    """The stretches of a run."""

    def __init__(self, terms: Terms, chains: Chains, calls: Moments) -> None:
        self._terms, self._calls = terms, calls
        self._chains = chains
        instants = [terms.edges, chains.start, chains.end, calls.ready, calls.submit, calls.end]
        self._times = np.unique(np.clip(np.concatenate(instants), terms.edges[0], terms.edges[-1]))
        self._bin = np.searchsorted(terms.edges, self._times[:-1], "right") - 1

    def sums(self) -> Sums:
        terms, calls = self._terms, self._calls
        gaps = _gaps(terms, self._chains, calls)
        live = self._count(self._chains.start, self._chains.end)
        mine = [calls.engine == engine for engine in range(terms.engines)]
        in_flight = [self._count(calls.submit[each], calls.end[each]) for each in mine]
        waiting = [self._count(calls.ready[each], calls.submit[each]) for each in mine]
        held = [self._count(calls.ready[each & calls.again], calls.submit[each & calls.again]) for each in mine]
        between = [self._count(*_columns(gaps, engine)) for engine in range(terms.engines)]
        at, ready, again, after = (_bits(counts) for counts in (in_flight, waiting, held, between))
        found = [self._causes(int(group), live, at, ready, again, after) for group in terms.groups]
        of_engines = [[self._added(counts) for counts in each] for each in (in_flight, waiting)]
        of_groups = [[self._added(cause == each) for each in range(7)] for cause in found]
        values = [self._added(live), self._added(np.bitwise_count(at) >= 2), *of_engines, of_groups]
        return Sums(*(np.array(value).reshape(zeros.shape) for value, zeros in zip(values, no_sums(terms), strict=True)))

    def _count(self, starts: Array, ends: Array) -> Array:
        """Of the stretches: in how many of these spans each of them lies."""
        change = np.zeros(len(self._times), np.int64)
        for instants, sign in ((starts, 1), (ends, -1)):
            places = np.searchsorted(self._times, np.clip(instants, self._times[0], self._times[-1]))
            np.add.at(change, places, sign)
        return np.cumsum(change)[:-1]

    def _added(self, weights: Array) -> Array:
        """Lengths of the stretches times `weights`, by bin."""
        total = np.zeros(len(self._terms.edges) - 1, np.int64)
        np.add.at(total, self._bin, np.diff(self._times) * weights)
        return total

    def _causes(self, group: int, live: Array, at: Array, ready: Array, again: Array, after: Array) -> Array:
        """Of each stretch why no engine of `group` is busy, or that one is."""
        terms = self._terms
        tail = (self._times[:-1] >= terms.last_admission) & (live < terms.full)
        held = BARRIER if terms.lockstep else ORCHESTRATION
        conditions = [at & group != 0, live == 0, again & group != 0, ready & group != 0, after & group != 0, tail]
        return np.select(conditions, [BUSY, NOTHING_ADMITTED, RECOVERY, held, ORCHESTRATION, TAIL], OTHER_ENGINE)


def _bits(counts: Sequence[Array]) -> Array:
    return np.asarray(sum((count > 0).astype(np.int64) << place for place, count in enumerate(counts)))


Spans = list[tuple[int, int, int]]
"""Bits of engines, start, end."""


def _columns(spans: Spans, engine: int) -> tuple[Array, Array]:
    mine = [(start, end) for bits, start, end in spans if bits >> engine & 1]
    starts, ends = np.array(mine, np.int64).reshape(-1, 2).T
    return starts, ends


def _gaps(terms: Terms, chains: Chains, calls: Moments) -> Spans:
    """When chains were between their calls, with the engines of the next ones."""
    gaps: Spans = []
    order = np.argsort(calls.chain, kind="stable")
    cuts = np.searchsorted(calls.chain[order], np.arange(len(chains.start) + 1))
    for chain, (start, end, status) in enumerate(zip(chains.start.tolist(), chains.end.tolist(), chains.status.tolist(), strict=True)):
        mine = order[cuts[chain] : cuts[chain + 1]]
        rows = list(zip(*(calls[column][mine].tolist() for column in (1, 3, 5)), strict=True))
        after = 0 if status == OPEN else (1 << terms.engines) - 1
        found = [(bits, max(since, start), min(until, end)) for bits, since, until in _chain_gaps(rows, start, end, after)]
        gaps += [gap for gap in found if gap[1] < gap[2]]
    return gaps


def _chain_gaps(rows: Sequence[tuple[int, int, int]], start: int, end: int, after: int) -> Iterator[tuple[int, int, int]]:
    """Go back through the `rows` of one chain: engine, ready, end; `after` are the engines that its end holds up."""
    events = [(end, 1, engine) for engine, _, end in rows] + [(ready, 0, engine) for engine, ready, _ in rows]
    outstanding, since, nearby = 0, end, LATE
    for time, ends, engine in sorted(events, key=lambda event: event[:2], reverse=True):
        if ends:
            if not outstanding:
                yield after, time, since
            outstanding += 1
        else:
            outstanding -= 1
            near = nearby - time <= SAME_NS
            after, nearby, since = (after | 1 << engine, nearby, time) if near else (1 << engine, time, time)
    if not outstanding:
        yield after, start, since
