"""How long calls take, by stage and part: percentiles over a run folder's answered calls.

Up to `EXACT_CALLS` calls they are exact. Of more calls only counts in bins of equal relative width are kept, and a percentile is
off by at most `RELATIVE_ERROR`; count, mean and maximum are always exact.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from pipeline.analysis.compiled import compiled
from pipeline.analysis.time.calls import Calls, accumulate
from pipeline.analysis.time.timeline import Array

QUANTITIES = ("wait", "queue", "prefill", "decode", "first_token", "e2e", "per_output_token")
"""The parts of a call's time. `wait`: in the lane or before a barrier; of a repeated attempt, from the failure until it was sent
again. `queue`, `prefill`, `decode`, `first_token`: by the engine's clock, where it measures them. `e2e`: from being sent until
answered. `per_output_token`: decode time for each token after the first."""
COLUMNS = ("client_wait_s", "queue_time_s", "prefill_time_s", "decode_time_s", "time_to_first_token_s", None, "time_per_output_token_s")
"""The column of the calls table that holds each quantity; None: it is the difference of `end` and `submit`."""
EXACT_CALLS = 100_000
"""Number of calls up to which all their times are kept."""
RELATIVE_ERROR = 1 / 256
FRACTION_BITS = 7
"""How many of the 52 bits of a number's fraction select its bin, together with its exponent: a bin's relative width is 2^-7, and the middle
of a bin is off by half of that at most."""
SHIFT = 52 - FRACTION_BITS
SMALLEST, LARGEST = 2.0**-40, 2.0**40
"""Seconds: what is below `SMALLEST` counts as 0, what is above `LARGEST` as `LARGEST`."""
FIRST = int(np.float64(SMALLEST).view(np.int64) >> SHIFT)
BINS = int(np.float64(LARGEST).view(np.int64) >> SHIFT) - FIRST + 2


class Percentiles(Struct, frozen=True, kw_only=True):
    """Mean, maximum and percentiles of `count` values, in seconds. The p90 is the least value that 90 % of the values do not exceed."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def latencies(run: Path) -> dict[str, dict[str, Percentiles]]:
    """Percentiles by stage and quantity, without quantities that no call has; raises `InputError` when there is no trace to read."""
    [accumulator] = accumulate(run, lambda outline: (LatencyAccumulator(),))
    return accumulator.result()


class LatencyAccumulator:
    """Makes percentiles of the answered calls that are added; up to `exact_calls` calls they are exact. See `Accumulator`."""

    columns: tuple[str, ...] = tuple(name for name in COLUMNS if name)

    def __init__(self, exact_calls: int = EXACT_CALLS) -> None:
        self._exact_calls, self._calls = exact_calls, 0
        self._stages: Sequence[str] = ()
        self._exact: list[tuple[Array, list[Array]]] = []
        self._totals = [BinCounts() for _ in QUANTITIES]

    def add(self, calls: Calls) -> None:
        self._stages = calls.stages
        self._calls += len(calls.end)
        stage = np.where(calls.failed, -1, calls.stage)
        self._exact.append((stage, [(calls.end - calls.submit) / 1e9 if name is None else calls.seconds(name) for name in COLUMNS]))
        if self._calls > self._exact_calls:
            for stage, values in self._exact:
                for total, each in zip(self._totals, values, strict=True):
                    total.add(stage, each, len(self._stages))
            self._exact = []

    def result(self) -> dict[str, dict[str, Percentiles]]:
        """Percentiles of the calls that were added, by stage and quantity."""
        found: dict[str, dict[str, Percentiles]] = {}
        for place, stage in enumerate(self._stages):
            each = {quantity: self._percentiles(number, place) for number, quantity in enumerate(QUANTITIES)}
            found[stage] = {quantity: one for quantity, one in each.items() if one is not None}
        return {stage: each for stage, each in found.items() if each}

    def _percentiles(self, quantity: int, stage: int) -> Percentiles | None:
        if self._calls > self._exact_calls:
            return self._totals[quantity].percentiles(stage)
        return exactly(np.concatenate([np.empty(0), *(values[quantity][stages == stage] for stages, values in self._exact)]))


def exactly(values: Array) -> Percentiles | None:
    """The percentiles of `values` without those that are NaN; None where none are left."""
    values = np.sort(values[~np.isnan(values)])
    if not len(values):
        return None
    p50, p90, p99 = (float(values[rank(len(values), percent)]) for percent in (50, 90, 99))
    return Percentiles(count=len(values), mean=float(values.mean()), p50=p50, p90=p90, p99=p99, max=float(values[-1]))


def rank(count: int, percent: int) -> int:
    """The index, from 0, of a percentile among `count` values in ascending order."""
    return max(0, -(-count * percent // 100) - 1)


class BinCounts:
    """A histogram of the values of one quantity for each stage, with their sum and maximum."""

    def __init__(self) -> None:
        self._bins = np.zeros((0, BINS), np.int64)
        self._extremes = np.zeros((0, 2))
        """Sum and maximum of the values, by stage."""

    def add(self, stage: Array, values: Array, stages: int) -> None:
        """Add `values`, each of the stage in `stage`, out of `stages` in all. NaN and values of a stage below 0 are skipped."""
        if more := stages - len(self._bins):
            self._bins = np.concatenate([self._bins, np.zeros((more, BINS), np.int64)])
            self._extremes = np.concatenate([self._extremes, np.zeros((more, 2))])
        compiled(count)(stage, values, values.view(np.int64), self._bins, self._extremes)

    def percentiles(self, stage: int) -> Percentiles | None:
        """The percentiles of the stage with this index; None where it has no values."""
        upto = np.cumsum(self._bins[stage])
        if not (count := int(upto[-1])):
            return None
        total, most = self._extremes[stage].tolist()
        p50, p90, p99 = (min(middle_of(int(np.searchsorted(upto, rank(count, percent), "right"))), most) for percent in (50, 90, 99))
        return Percentiles(count=count, mean=total / count, p50=p50, p90=p90, p99=p99, max=most)


def count(stage: Array, values: Array, bits: Array, bins: Array, extremes: Array) -> None:
    """Add `values` to `bins` and `extremes`, by stage; `bits` are the same values, their bits read as integers.

    Positive floats sort as their bits do, so the leading bits of a value are the number of its bin.
    """
    for row in range(len(stage)):
        value, place = values[row], stage[row]
        if place >= 0 and value == value:
            bins[place, min(max((bits[row] >> SHIFT) - FIRST + 1, 0), BINS - 1)] += 1
            extremes[place, 0] += value
            extremes[place, 1] = max(extremes[place, 1], value)


def middle_of(place: int) -> float:
    """The middle of the bin with the index `place`, in seconds."""
    if not place:
        return 0.0
    low, high = ((np.int64(FIRST + place + side) << SHIFT).view(np.float64) for side in (-1, 0))
    return float(low + high) / 2
