"""What the time of engines was spent on: chains and calls enter as instants, sums by engine and bin leave.

What decides on the cause is whether there is any call in flight, any that waits, any chain. So only those instants matter at which there
begins to be one, or at which the last one ends: between two of these, of which a busy run has few, the cause stays.
"""

from typing import NamedTuple

import numpy as np

from pipeline.analysis.time.work import OPEN, SLACK_NS, Array, Calls, Lives

BUSY, NOTHING_ADMITTED, RECOVERY, BARRIER, ORCHESTRATION, TAIL, OTHER_ENGINE = range(7)
"""What an engine's time is spent on, the first that holds."""


class IdleRules(NamedTuple):
    """The bins and engines to measure, and what decides on causes of idleness; instants in nanoseconds."""

    edges: Array
    """Edges of the bins."""
    engines: int
    devices: Array
    """Of each device and engine, a row each: whether the engine is on it."""
    lockstep: bool
    """True if the run's schedule was `lockstep`."""
    full: int
    """The number of chains that may live at once."""
    last_admission: int
    """When the last chain started."""


class IdleSums(NamedTuple):
    """Nanoseconds in each bin."""

    open: Array
    """Added up over chains or calls, by row: chains that live (row 0); then by engine calls in flight, and calls that wait."""
    overlap: Array
    """In which two or more engines are busy."""
    spent: Array
    """By engine and after them by device, by what their time is spent on, and by bin."""


class _Spans:
    """Times from a start until an end, such as those of calls."""

    def __init__(self, starts: Array, ends: Array) -> None:
        self._starts, self._ends = np.sort(starts), np.sort(ends)

    def turns(self) -> Array:
        """The instants at which the first of them begins or the last one ends."""
        apart = np.ones(len(self._starts) + 1, bool)
        apart[1:-1] = self._starts[1:] > self._ends[:-1]
        return np.concatenate((self._starts[apart[:-1]], self._ends[apart[1:]]))

    def count(self, instants: Array) -> Array:
        """How many there are at each of the instants."""
        return np.searchsorted(self._starts, instants, "right") - np.searchsorted(self._ends, instants, "right")

    def sums(self, edges: Array) -> Array:
        """Their nanoseconds in each bin, added up."""
        since_start, since_end = (_since(instants, edges) for instants in (self._starts, self._ends))
        return np.diff(since_start - since_end)


def _since(instants: Array, edges: Array) -> Array:
    """Nanoseconds from the earlier ones of the sorted `instants` to each edge, added up, modulo 2^64."""
    earlier = np.searchsorted(instants, edges)
    since: Array = earlier * edges - np.append(0, np.cumsum(instants))[earlier]
    return since


def occupancy_sums(rules: IdleRules, chains: Lives, calls: Calls) -> IdleSums:
    """What the time of each engine and device was spent on, by bin."""
    lives, coming = _Spans(chains.start, chains.end), _coming(chains, calls, rules.engines)
    of_engines = [calls.engine == engine for engine in range(rules.engines)]
    in_flight = [_Spans(calls.submit[mine], calls.end[mine]) for mine in of_engines]
    waiting = [_Spans(calls.ready[mine], calls.submit[mine]) for mine in of_engines]
    again = [_Spans(calls.ready[mine], calls.submit[mine]) for mine in (mine & calls.again for mine in of_engines)]
    ends = np.sort(chains.end)
    tail = max(rules.last_admission, int(ends[max(0, len(ends) - rules.full) :].min(initial=rules.edges[-1])))

    turns = [spans.turns() for spans in (lives, *in_flight, *waiting, *again, *coming)]
    instants = np.sort(np.clip(np.concatenate((rules.edges, [tail], *turns)), rules.edges[0], rules.edges[-1]))
    instants = instants[np.append(True, np.diff(instants) > 0)]  # np.unique takes ten times as long
    since, lengths = instants[:-1], np.diff(instants)
    bins = len(rules.edges) - 1
    places = np.searchsorted(rules.edges, since, "right") - 1

    nobody, rest = lives.count(since) == 0, np.where(since >= tail, TAIL, OTHER_ENGINE)
    waits = BARRIER if rules.lockstep else ORCHESTRATION
    causes = np.empty((rules.engines, len(since)), np.int64)
    for engine, (flies, repeats, is_ready, comes) in enumerate(zip(in_flight, again, waiting, coming, strict=True)):
        holds = [flies.count(since) > 0, nobody, *(spans.count(since) > 0 for spans in (repeats, is_ready, comes))]
        causes[engine] = np.select(holds, [BUSY, NOTHING_ADMITTED, RECOVERY, waits, ORCHESTRATION], rest)
    of_devices = [causes[on].min(axis=0) for on in rules.devices]
    overlap = ((causes == BUSY).sum(axis=0) > 1) * lengths
    spent = [np.bincount(cause * bins + places, lengths, 7 * bins).reshape(7, bins) for cause in (*causes, *of_devices)]
    return IdleSums(
        open=np.array([spans.sums(rules.edges) for spans in (lives, *in_flight, *waiting)]),
        overlap=np.bincount(places, overlap, bins).astype(np.int64),
        spent=np.array(spent).astype(np.int64).reshape(-1, 7, bins),
    )


def _coming(chains: Lives, calls: Calls, engines: int) -> list[_Spans]:
    """By engine when chains are between their calls and the next one is for it.

    A chain that has made its last call and has not ended is between calls at every engine; what one without a row does then is not known.
    """
    done, first = chains.start.copy(), chains.start.copy()
    np.maximum.at(done, calls.chain, calls.end)
    np.minimum.at(first, calls.chain, calls.ready)
    last, known = np.maximum(done, chains.end), chains.status != OPEN
    # Chains are laid end to end, so that one running maximum says until when the earlier calls of each took.
    shift = np.cumsum(last - first + 1) - last
    ready = calls.ready + shift[calls.chain]
    order = np.argsort(ready)
    ready, chain, engine = ready[order], calls.chain[order], calls.engine[order]
    before = np.append(-1, np.maximum.accumulate(calls.end[order] + shift[chain]))[:-1]
    alone = ready > before  # no earlier call of its chain is open: what becomes ready with it was waited for
    group = np.cumsum(alone) - 1
    begins, since = ready[alone][group], np.maximum(before[alone][group], (chains.start + shift)[chain])
    until = np.maximum(since, np.minimum(begins, (chains.end + shift)[chain]))
    since, until = since - shift[chain], until - shift[chain]
    next_one = ready <= begins + SLACK_NS
    spans = []
    for each in range(engines):
        mine = next_one & (engine == each)
        spans.append(_Spans(np.append(since[mine], done[known]), np.append(until[mine], last[known])))
    return spans
