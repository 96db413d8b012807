"""Where the time of calls and chains goes: percentiles of the answered calls' times, by stage and part; and the critical paths of chains.

A critical path is the calls that determined when a chain ended, one after the other. It is found backwards from the chain's end: the call
that ended last before it, its time in lane and engine, and from the moment it was ready the same again. Calls that ran in parallel to the
path are not on it.
"""

from math import fsum

import numpy as np
from msgspec import Struct

from pipeline.analysis.arrays import Array
from pipeline.analysis.time.work import FINISHED, SLACK_NS, Calls, Lives, RunTimes, pieces
from pipeline.store.query import Query

COLUMNS = {
    "wait": "client_wait_s",
    "queue": "queue_time_s",
    "prefill": "prefill_time_s",
    "decode": "decode_time_s",
    "first_token": "time_to_first_token_s",
    "e2e": "greatest(end_unix_ns - submit_unix_ns, 0) / 1e9",
    "per_output_token": "time_per_output_token_s",
}
"""The parts of a call's time, and the SQL of each. `wait`: in the lane or before a barrier; of a repeated attempt, from the failure until
it was sent again. `queue`, `prefill`, `decode`, `first_token`: by the engine's clock, where it measures them. `e2e`: from being sent
until answered. `per_output_token`: decode time for each token after the first."""
QUANTITIES = tuple(COLUMNS)


class Percentiles(Struct, frozen=True, kw_only=True):
    """Mean, maximum and percentiles of `count` values, in seconds. The p90 is the least value that 90 % of the values do not exceed."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


class StageLatencies(Struct, frozen=True):
    """The calls of one stage."""

    stage: str
    parts: dict[str, Percentiles | None]
    """By quantity; null where no call has it."""


def latencies(db: Query) -> dict[str, dict[str, Percentiles]]:
    """Percentiles by stage and quantity, without quantities that no call has."""
    parts = ", ".join(f"{quantity}: {_percentiles(column)}" for quantity, column in COLUMNS.items())
    rows = db.rows(f"SELECT stage, {{{parts}}} AS parts FROM calls WHERE error_type IS NULL GROUP BY stage ORDER BY stage", StageLatencies)
    return {row.stage: {quantity: one for quantity, one in row.parts.items() if one is not None} for row in rows}


def _percentiles(column: str) -> str:
    """The SQL of the `Percentiles` of a column, as a struct."""
    at = {name: f"quantile_disc({column}, [0.5, 0.9, 0.99])[{place}]" for place, name in enumerate(("p50", "p90", "p99"), 1)}
    fields = {"count": f"count({column})", "mean": f"avg({column})", **at, "max": f"max({column})"}
    return f"CASE WHEN count({column}) > 0 THEN {{{', '.join(f'{name}: {value}' for name, value in fields.items())}}} END"


SEGMENTS = ("between", "retry", "wait", "queue", "prefill", "decode", "transfer", "engine")
"""The kinds of segments of a path, in the order of their numbers:

- `between`: from one call's end until the next one was ready, or the chain ended: the orchestrator's own work.
- `retry`: from a failed attempt's end until the call was sent again.
- `wait`: from being ready until the call was sent: in the lane or before a barrier.
- `queue`, `prefill`, `decode`: at the engine, by its own clock.
- `transfer`: in flight by our clock less the three by the engine's: the way there and back, and answers that waited to be read.
- `engine`: the same difference for an engine that does not measure all three.
"""
BETWEEN, RETRY, WAIT, QUEUE, PREFILL, DECODE, TRANSFER, ENGINE = range(len(SEGMENTS))
OFF = -1
"""Stands for the instant of a call that is on no path."""
END = "(end)"
"""Stands for the stage in the time after a chain's last call."""


class CriticalPath(Struct, frozen=True, kw_only=True):
    """The critical paths of all finished chains of a run, added up."""

    chains: int
    """Number of finished chains."""
    total_s: dict[tuple[str, str], float]
    """Seconds by stage and kind of segment; their sum is the time of all finished chains."""

    @property
    def mean_s(self) -> dict[tuple[str, str], float]:
        """Seconds by stage and kind of segment, of the mean chain."""
        return {key: total / self.chains for key, total in self.total_s.items()}

    @property
    def chain_time_s(self) -> float:
        """Seconds from admission to the end, added up over all finished chains."""
        return fsum(self.total_s.values())


def critical_path(work: RunTimes) -> CriticalPath:
    """The critical paths of a run."""
    total = np.sum([path_sums(*each, len(work.stages)) for each in pieces(work.lives, work.calls)], axis=0)
    names = [*work.stages, END]
    places = zip(*np.nonzero(total), strict=True)
    found = {(names[stage], SEGMENTS[segment]): float(total[stage, segment] / 1e9) for stage, segment in places}
    return CriticalPath(chains=int((work.lives.status == FINISHED).sum()), total_s=found)


def path_sums(chains: Lives, calls: Calls, stages: int) -> Array:
    """Nanoseconds by stage and segment, added up over the critical paths of the finished chains; the last row is for the time after a
    chain's last call."""
    sums, kinds = np.zeros((stages + 1) * len(SEGMENTS), np.int64), len(SEGMENTS)
    order = np.argsort(calls.chain, kind="stable")
    mine, start = np.flatnonzero(chains.status == FINISHED), chains.start
    fronts, known = _fronts(chains, calls, order, mine)
    call = order[on := fronts != OFF]
    front, chain, stage = fronts[on], calls.chain[call], calls.stage[call].astype(np.int64)
    until = np.minimum(calls.end[call], front)
    submit = np.minimum(calls.submit[call], until)
    after = np.where(np.diff(chain, append=-1), stages, np.roll(stage, -1))
    np.add.at(sums, kinds * after + BETWEEN, front - until)
    np.add.at(sums, kinds * stage + np.where(calls.again[call], RETRY, WAIT), submit - np.minimum(calls.ready[call], until))
    left, measured = until - submit, np.ones(len(call), bool)
    for segment, column in ((QUEUE, calls.queue), (PREFILL, calls.prefill), (DECODE, calls.decode)):
        own = column[call]
        length = np.clip(own, 0, left)
        np.add.at(sums, kinds * stage + segment, length)
        left, measured = left - length, measured & (own >= 0)
    np.add.at(sums, kinds * stage + np.where(measured, TRANSFER, ENGINE), left)
    after, first = np.full(len(start), stages), np.diff(chain, prepend=-1) != 0
    after[chain[first]] = stage[first]
    np.add.at(sums, kinds * after[mine] + BETWEEN, known - start[mine])
    return sums.reshape(-1, kinds)


def _fronts(chains: Lives, calls: Calls, order: Array, mine: Array) -> tuple[Array, Array]:
    """For each call in the `order` of chains, the instant back to which the path of its chain is known when the call comes next on it, or
    `OFF`; and the instant back to which the paths of the chains that are `mine` are known in the end.

    All chains go back by one call at a time, those with most calls first, so that the ones that are not done yet come first.
    """
    end, ready, fronts = calls.end[order], calls.ready[order], np.full(len(order), OFF)
    bounds = np.searchsorted(calls.chain[order], np.arange(len(chains.end) + 1))
    count = np.diff(bounds)[mine]
    by_count = np.argsort(-count, kind="stable")
    start, front, last, count = chains.start[mine][by_count], chains.end[mine][by_count], bounds[mine + 1][by_count] - 1, count[by_count]
    for hop in range(count.max(initial=0)):
        left = slice(np.searchsorted(-count, -hop))
        place = last[left] - hop
        on = (end[place] <= front[left] + SLACK_NS) & (ready[place] >= start[left])
        fronts[place[on]] = front[left][on]
        np.minimum(front[left], ready[place], out=front[left], where=on)
    known = np.empty_like(front)
    known[by_count] = front
    return fronts, known
