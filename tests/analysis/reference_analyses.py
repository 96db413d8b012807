"""What analyses are held against: the same figures worked out by plain loops and whole arrays over all calls at once."""

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_

import numpy as np

from pipeline.analysis.time.walk import BARRIER, BUSY, NOTHING_ADMITTED, ORCHESTRATION, OTHER_ENGINE, RECOVERY, TAIL, IdleRules
from pipeline.analysis.time.work import OPEN, SLACK_NS, Array, Calls, Lives


def occupancy_sums(rules: IdleRules, chains: Lives, calls: Calls) -> Array:
    """The sums over all calls of a run: of the stretches between instants at which anything changes, all at once.

    What chains do between their calls is found chain by chain.
    """
    return _Stretches(rules, chains, calls).sums()


class _Stretches:
    """The stretches of a run."""

    def __init__(self, rules: IdleRules, chains: Lives, calls: Calls) -> None:
        self._rules, self._calls = rules, calls
        self._chains = chains
        marks = np.array([rules.last_admission])
        instants = [rules.edges, chains.start, chains.end, calls.ready, calls.submit, calls.end, marks]
        self._times = np.unique(np.clip(np.concatenate(instants), rules.edges[0], rules.edges[-1]))
        self._bin = np.searchsorted(rules.edges, self._times[:-1], "right") - 1

    def sums(self) -> Array:
        rules, calls = self._rules, self._calls
        gaps = _gaps(rules, self._chains, calls)
        live = self._count(self._chains.start, self._chains.end)
        mine = [calls.engine == engine for engine in range(rules.engines)]
        in_flight = [self._count(calls.submit[each], calls.end[each]) for each in mine]
        waiting = [self._count(calls.ready[each], calls.submit[each]) for each in mine]
        held = [self._count(calls.ready[each & calls.again], calls.submit[each & calls.again]) for each in mine]
        between = [self._count(*_columns(gaps, engine)) for engine in range(rules.engines)]
        at, ready, again, after = (_bits(counts) for counts in (in_flight, waiting, held, between))
        groups = [
            *(1 << engine for engine in range(rules.engines)),
            *(sum(1 << place for place in np.flatnonzero(on)) for on in rules.devices),
        ]
        found = [self._causes(int(group), live, at, ready, again, after) for group in groups]
        of_engines = [[self._added(counts) for counts in each] for each in (in_flight, waiting)]
        of_groups = [[self._added(cause == each) for each in range(7)] for cause in found]
        rows = [[self._added(live), self._added(np.bitwise_count(at) >= 2)], *of_engines, *of_groups]
        return np.array([row for some in rows for row in some])

    def _count(self, starts: Array, ends: Array) -> Array:
        """Of the stretches: in how many of these spans each of them lies."""
        change = np.zeros(len(self._times), np.int64)
        for instants, sign in ((starts, 1), (ends, -1)):
            places = np.searchsorted(self._times, np.clip(instants, self._times[0], self._times[-1]))
            np.add.at(change, places, sign)
        return np.cumsum(change)[:-1]

    def _added(self, weights: Array) -> Array:
        """Lengths of the stretches times `weights`, by bin."""
        total = np.zeros(len(self._rules.edges) - 1, np.int64)
        np.add.at(total, self._bin, np.diff(self._times) * weights)
        return total

    def _causes(self, group: int, live: Array, at: Array, ready: Array, again: Array, after: Array) -> Array:
        """Of each stretch why no engine of `group` is busy, or that one is."""
        rules = self._rules
        tail = (self._times[:-1] >= rules.last_admission) & (live < rules.full)
        held = BARRIER if rules.lockstep else ORCHESTRATION
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


def _gaps(rules: IdleRules, chains: Lives, calls: Calls) -> Spans:
    """When chains were between their calls, with the engines of the next ones."""
    gaps: Spans = []
    order = np.argsort(calls.chain, kind="stable")
    cuts = np.searchsorted(calls.chain[order], np.arange(len(chains.start) + 1))
    for chain, (start, end, status) in enumerate(zip(chains.start.tolist(), chains.end.tolist(), chains.status.tolist(), strict=True)):
        mine = order[cuts[chain] : cuts[chain + 1]]
        rows = list(zip(*(column[mine].tolist() for column in (calls.engine, calls.ready, calls.end)), strict=True))
        after = 0 if status == OPEN else (1 << rules.engines) - 1
        found = [(bits, max(since, start), min(until, end)) for bits, since, until in _chain_gaps(rows, start, end, after)]
        gaps += [gap for gap in found if gap[1] < gap[2]]
    return gaps


def _chain_gaps(rows: Sequence[tuple[int, int, int]], start: int, end: int, after: int) -> Iterator[tuple[int, int, int]]:
    """Go back through the `rows` of one chain: engine, ready, end; `after` are the engines that its end holds up."""
    events = [(end, 1, engine) for engine, _, end in rows] + [(ready, 0, engine) for engine, ready, _ in rows]
    outstanding, since, readies = 0, end, list[tuple[int, int]]()
    for time, ends, engine in sorted(events, key=lambda event: event[:2], reverse=True):
        if ends:
            if not outstanding:
                yield after, time, since
                readies = []
            outstanding += 1
        else:
            outstanding -= 1
            readies.append((time, engine))
            after, since = reduce(or_, (1 << each for ready, each in readies if ready <= time + SLACK_NS)), time
    if not outstanding:
        yield after, start, since
