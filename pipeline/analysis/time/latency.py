"""Where the time of calls and chains goes: percentiles of the answered calls' times, by stage and part; and the critical paths of chains.

A critical path is the calls that determined when a chain ended, one after the other. It is found backwards from the chain's end: the call
that ended last before it, its time in lane and engine, and from the moment it was ready the same again. Calls that ran in parallel to the
path are not on it. `sweep.walk` follows all chains in one pass.
"""

from math import fsum

import numpy as np
from msgspec import Struct

from pipeline.analysis.time.sweep import FINISHED, LONG, Calls, path_sums
from pipeline.analysis.time.work import RunTimes
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
"""The kinds of segments of a path, in the order of their numbers in `sweep`:

- `between`: from one call's end until the next one was ready, or the chain ended: the orchestrator's own work.
- `retry`: from a failed attempt's end until the call was sent again.
- `wait`: from being ready until the call was sent: in the lane or before a barrier.
- `queue`, `prefill`, `decode`: at the engine, by its own clock.
- `transfer`: in flight by our clock less the three by the engine's: the way there and back, and answers that waited to be read.
- `engine`: the same difference for an engine that does not measure all three.
"""
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


def critical_path(work: RunTimes, calls: Calls) -> CriticalPath:
    """The critical paths of a run; `calls` are all of its calls."""
    total = path_sums(work.lives, calls, len(work.stages), compile=len(calls.end) >= LONG)
    names = [*work.stages, END]
    places = zip(*np.nonzero(total), strict=True)
    found = {(names[stage], SEGMENTS[segment]): float(total[stage, segment] / 1e9) for stage, segment in places}
    return CriticalPath(chains=int((work.lives.status == FINISHED).sum()), total_s=found)
