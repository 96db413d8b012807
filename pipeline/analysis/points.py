"""The points of a sweep: one run each, in numbers. Run folders enter, one frozen `Point` a run leaves, and a Parquet file of
them; curves over the batch size, and where two of them cross, are worked out from points alone.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, structs

from pipeline.analysis.summary import Summary, summarize
from pipeline.analysis.time.timeline import Array
from pipeline.errors import InputError
from pipeline.files import new_file
from pipeline.trace.events import UNFINISHED
from pipeline.trace.read import read_batches, readable


class Coordinates(Struct, frozen=True, kw_only=True):
    """Where a point stands in its sweep: everything that varies."""

    system: str
    """The graph's name and the params that were varied: `speccot candidates=5`."""
    graph: str
    params: dict[str, bool | int | float | str] = {}
    """Those that were varied."""
    schedule: str
    batch_size: int
    repeat: int = 0
    """From 0."""
    baseline: bool = False
    """The target alone, with which the others are compared."""

    @property
    def curve(self) -> str:
        """What all points of one curve share."""
        return self.system if self.baseline else f"{self.system}, {self.schedule}"


class Point(Coordinates, frozen=True, kw_only=True):
    """One run of a sweep in numbers; what is not known is null."""

    simulated: bool
    chains: int
    failed: int
    problems: int
    wall_s: float
    """From the first chain's start to the last one's end."""
    tail_s: float
    """The last part of it, in which fewer chains lived than the batch size."""
    orchestrator_cpu_s: float | None
    problems_per_s: float
    """Over the wall time, the tail included."""
    steady_problems_per_s: float | None
    """Problems that ended before the tail, over the time before it; null where all of the run was tail."""
    output_tokens_per_s: float | None
    """Sampled, by all engines."""
    committed_tokens_per_s: float
    """Of thoughts, whoever wrote them: what a user gets."""
    chain_mean_s: float | None
    chain_p50_s: float | None
    chain_p90_s: float | None
    chain_p99_s: float | None
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None
    """Ends of the 95 % interval; see `Summary.accuracy_interval`."""
    acceptance_rate: float | None
    draft_share: float | None
    """Of the thought tokens."""
    wasted_draft_tokens: int
    overlap_share: float
    busy_share: dict[str, float]
    """By role, 0 to 1."""
    cached_share: dict[str, float]
    """By role: prompt tokens that were in the prefix cache."""
    limit_s: dict[str, float]
    """By role: seconds for the calls that it got, alone and all ready at once; empty where it was not measured."""
    cache_kept: bool
    """An engine could not forget: prompts may have been in its cache from points before."""

    @property
    def over_limit(self) -> float | None:
        """Distance to the limit: the wall time over that of the slower engine alone."""
        return self.wall_s / max(self.limit_s.values()) if self.limit_s else None


class Spread(Struct, frozen=True):
    """A figure over the repeats of one batch size."""

    median: float
    low: float
    high: float


def point_of_run(
    folder: Path, coordinates: Coordinates, *, simulated: bool, limit_s: dict[str, float], cpu_s: float | None, cache_kept: bool
) -> Point:
    """The point of the finished run in `folder`; raises `InputError`."""
    summary = summarize(folder)
    chains = _chains(folder)
    wall_s = summary.wall_time_s or summary.span_s
    tail_s = min(summary.tail_time_s or 0.0, wall_s)
    return Point(
        **structs.asdict(coordinates),
        simulated=simulated,
        chains=summary.chains,
        failed=summary.failed,
        problems=summary.problems,
        wall_s=wall_s,
        tail_s=tail_s,
        orchestrator_cpu_s=cpu_s,
        problems_per_s=summary.problems_per_s or 0.0,
        steady_problems_per_s=_steady(chains["end_unix_ns"], wall_s, tail_s, summary),
        output_tokens_per_s=summary.output_tokens_per_s,
        committed_tokens_per_s=summary.thought_tokens / wall_s if wall_s else 0.0,
        **_latencies(chains["chain_time_s"]),
        accuracy=summary.accuracy,
        accuracy_low=summary.accuracy_interval.low if summary.accuracy_interval else None,
        accuracy_high=summary.accuracy_interval.high if summary.accuracy_interval else None,
        acceptance_rate=summary.acceptance_rate,
        draft_share=summary.draft_share,
        wasted_draft_tokens=summary.wasted_draft_tokens,
        overlap_share=summary.overlap_share,
        busy_share={role: engine.busy_share for role, engine in summary.engines.items()},
        cached_share={role: engine.cached_input_tokens / max(engine.input_tokens, 1) for role, engine in summary.engines.items()},
        limit_s=limit_s,
        cache_kept=cache_kept,
    )


def _chains(folder: Path) -> dict[str, Array]:
    """Ends and durations of the chains that finished."""
    parts: dict[str, list[Array]] = {"end_unix_ns": [np.empty(0, np.int64)], "chain_time_s": [np.empty(0)]}
    for batch in read_batches(folder, "chains", [*parts, "stop_reason"]):
        done = np.array([reason not in UNFINISHED for reason in batch.column("stop_reason").to_pylist()], bool)
        for name, columns in parts.items():
            columns.append(batch.column(name).to_numpy()[done])
    return {name: np.concatenate(columns) for name, columns in parts.items()}


def _steady(ends: Array, wall_s: float, tail_s: float, summary: Summary) -> float | None:
    """Chains that ended before the tail, as problems, over the time before it."""
    before_s = wall_s - tail_s
    if before_s <= 0 or not len(ends):
        return None
    count = int((ends <= ends.max() - round(tail_s * 1e9)).sum())
    return count / before_s * summary.problems / summary.chains


def _latencies(seconds: Array) -> dict[str, Any]:
    names = ("chain_mean_s", "chain_p50_s", "chain_p90_s", "chain_p99_s")
    if not len(seconds):
        return dict.fromkeys(names)
    return dict(zip(names, (float(seconds.mean()), *map(float, np.quantile(seconds, (0.5, 0.9, 0.99)))), strict=True))


BY_ROLE = ("busy_share", "cached_share", "limit_s")
"""What differs by role: a column each, `busy_share.draft`."""


def write_points(file: Path, points: Sequence[Point]) -> None:
    """Replace `file` by a Parquet table of `points`."""
    rows = [_row(point) for point in points]
    names = dict.fromkeys(name for row in rows for name in row)
    with new_file(file) as draft:
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), draft)


def read_points(file: Path) -> list[Point]:
    """What `write_points` wrote; raises `InputError`."""
    with readable(file):
        rows = pq.read_table(file).to_pylist()
    try:
        return [msgspec.convert(_decoded(row), Point) for row in rows]
    except (msgspec.ValidationError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise InputError(str(file), f"holds no points of a sweep: {error}") from error


def _row(point: Point) -> dict[str, Any]:
    row = structs.asdict(point) | {"params": msgspec.json.encode(point.params).decode()}
    return row | {f"{name}.{role}": value for name in BY_ROLE for role, value in row.pop(name).items()}


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    by_role: dict[str, dict[str, float]] = {name: {} for name in BY_ROLE}
    for name, _, role in (key.partition(".") for key in row):
        if role and row[f"{name}.{role}"] is not None:
            by_role[name][role] = row[f"{name}.{role}"]
    return row | by_role | {"params": msgspec.json.decode(row["params"])}


def curves(points: Iterable[Point]) -> dict[str, dict[int, list[Point]]]:
    """Points by curve and batch size, the baseline first, then in the order in which they come."""
    found: dict[str, dict[int, list[Point]]] = {}
    for point in sorted(points, key=lambda point: not point.baseline):
        found.setdefault(point.curve, {}).setdefault(point.batch_size, []).append(point)
    return {name: dict(sorted(curve.items())) for name, curve in found.items()}


def spread(values: Iterable[float | None]) -> Spread | None:
    """Of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return Spread(statistics.median(known), min(known), max(known)) if known else None


class Crossing(Struct, frozen=True, kw_only=True):
    """How a curve stands to the target alone, in problems per second."""

    ratios: dict[int, Spread]
    """By batch size: its throughput over the target's; median, and what the repeats allow."""
    faster: tuple[int, ...]
    """Batch sizes at which it is faster whatever the repeat."""
    slower: tuple[int, ...]
    at: float | None
    """The batch size at which the medians meet, between two neighbours that were measured, on a logarithmic axis; None
    where one of them is never the faster one beyond doubt."""

    @property
    def sentence(self) -> str:
        """In words."""
        unsure = [size for size in self.ratios if size not in (*self.faster, *self.slower)]
        said = {"faster than": self.faster, "slower than": self.slower, "not told apart from": unsure}
        parts = [f"{how} the target alone at {_sizes(sizes)}" for how, sizes in said.items() if sizes]
        return ", ".join(parts) + (f"; the curves cross near batch size {self.at:.3g}" if self.at is not None else "")


def _sizes(sizes: Sequence[int]) -> str:
    return f"batch size{'s' if len(sizes) > 1 else ''} {', '.join(map(str, sizes))}"


def crossing(curve: dict[int, list[Point]], baseline: dict[int, list[Point]]) -> Crossing | None:
    """How `curve` stands to `baseline`; None where no batch size is in both."""
    both = [size for size in curve if size in baseline and all(point.problems_per_s for point in (*curve[size], *baseline[size]))]
    ratios = {size: _ratio(curve[size], baseline[size]) for size in both}
    if not ratios:
        return None
    faster = tuple(size for size, ratio in ratios.items() if ratio.low > 1)
    slower = tuple(size for size, ratio in ratios.items() if ratio.high < 1)
    at = _meeting({size: ratio.median for size, ratio in ratios.items()}) if faster and slower else None
    return Crossing(ratios=ratios, faster=faster, slower=slower, at=at)


def _ratio(over: Sequence[Point], under: Sequence[Point]) -> Spread:
    ours, theirs = (sorted(point.problems_per_s for point in side) for side in (over, under))
    return Spread(statistics.median(ours) / statistics.median(theirs), ours[0] / theirs[-1], ours[-1] / theirs[0])


def _meeting(ratios: dict[int, float]) -> float | None:
    """Where the ratio passes 1 for the first time."""
    sizes = sorted(ratios)
    for left, right in pairwise(sizes):
        a, b = math.log(ratios[left]), math.log(ratios[right])
        if a * b < 0:
            return float(left * (right / left) ** (a / (a - b)))
    return None
