"""Spans of time as arrays: starts and ends in nanoseconds enter; their union, its length by bin, and how many are open leave.

Everything is added up in 64-bit integers, so that parts make up the whole to the nanosecond.
"""

from typing import NamedTuple

import numpy as np

from pipeline.analysis.arrays import Array


class Spans(NamedTuple):
    """Spans of time as columns. One that does not end after it begins is empty."""

    since: Array
    until: Array

    @property
    def length(self) -> int:
        """Nanoseconds of all spans."""
        return int((self.until - self.since).sum())

    def within(self, since: int, until: int) -> "Spans":
        """What of each span lies between two instants."""
        return Spans(np.maximum(self.since, since), np.minimum(self.until, until))


NONE = Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def together(*spans: Spans) -> Spans:
    """All of several columns of spans."""
    return Spans(*map(np.concatenate, zip(NONE, *spans, strict=True)))


def union(*spans: Spans) -> Spans:
    """The union of spans: in order, and apart from each other."""
    since, until = together(*spans)
    if not (kept := since < until).all():
        since, until = since[kept], until[kept]
    if not (since[1:] >= since[:-1]).all():
        order = np.argsort(since, kind="stable")
        since, until = since[order], until[order]
    until = np.maximum.accumulate(until)
    first, last = np.ones((2, len(since)), bool)
    first[1:] = last[:-1] = since[1:] > until[:-1]
    return Spans(since[first], until[last])


def gaps(spans: Spans, since: int, until: int) -> Spans:
    """What a union of spans leaves out of the time between two instants."""
    return Spans(np.append(since, spans.until), np.append(spans.since, until)).within(since, until)


def open_time(spans: Spans, edges: Array) -> Array:
    """Of any spans the time that each spends in each of the bins between the `edges`, added up over the spans.

    It is the time since each one began, less the time since each one ended. Both sums may exceed 64 bits and wrap around; so does their
    difference, back to what it is.
    """
    return np.asarray(np.diff(_time_since(spans.since, edges) - _time_since(spans.until, edges)))


def _time_since(instants: Array, edges: Array) -> Array:
    instants = np.sort(instants, kind="stable")
    passed = np.searchsorted(instants, edges)
    return np.asarray(passed * edges - np.append(0, np.cumsum(instants))[passed])


def open_at(spans: Spans) -> tuple[Array, Array]:
    """The instants at which any span begins or ends, and how many are open from each until the next."""
    instants = np.concatenate(spans)
    order = np.argsort(instants, kind="stable")
    instants, count = instants[order], np.cumsum(np.where(order < len(spans.since), 1, -1))
    last = np.diff(instants, append=instants[-1:] + 1) != 0
    return instants[last], count[last]


def while_open(spans: Spans, least: int, most: int) -> Spans:
    """When at least `least` and at most `most` of the spans are open; `least` is above 0."""
    instants, count = open_at(spans)
    kept = np.flatnonzero((count >= least) & (count <= most))
    return Spans(instants[kept], instants[kept + 1])  # after the last instant none is open
