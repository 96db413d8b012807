"""The points of a sweep, each the figures of one run. A run folder enters, a frozen `Point` leaves; points are kept in a Parquet file.

Curves over the batch size, and where two of them cross, are computed from points alone.
"""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, structs

from pipeline.analysis.facts import EngineFacts, answers, engine_facts, facts_of
from pipeline.analysis.summary import Summary, summarize
from pipeline.errors import BadRow, InputError
from pipeline.files import new_file
from pipeline.graph.spec import Param
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile
from pipeline.store.store import readable

TARGET, THE_TARGET = "target", "the target alone"
"""The baseline's graph, and its name in sentences; another baseline goes by its label."""


class Coordinates(Struct, frozen=True, kw_only=True):
    """What tells one point of a sweep from the others: all settings that vary."""

    system: str
    """The graph's name, the params that were varied and the engines file where there are several: `speccot candidates=5`."""
    graph: str
    params: dict[str, Param] = {}
    """Values of the params that were varied."""
    schedule: str
    batch_size: int
    repeat: int = 0
    """Number of the repetition, from 0."""
    baseline: bool = False
    """Whether this is a run of the target alone, with which the others are compared."""
    engines: str = ""
    """Name of the engines file where the sweep has several, else empty; `system` ends in ` on NAME` then."""
    unlike: tuple[str, ...] = ()
    """What is not as it is for the target alone that it is compared with, as clauses; see `compare.rules`."""
    data: str = ""
    """What the problems are called in a study; empty in a sweep."""
    seed: int | None = None
    """The seed where a study has several, else null."""

    @property
    def folder(self) -> str:
        """The name of the folder of its run, in the folder `runs` of the sweep; it does not depend on the other points."""
        seed = "" if self.seed is None else f" s{self.seed}"
        return re.sub(r"[^\w.=+-]+", "_", f"{self.data} {self.system} {self.schedule} b{self.batch_size} r{self.repeat}{seed}".lstrip())

    @property
    def curve(self) -> str:
        """The name of the curve that the point is on: points with the same name differ only in batch size and repeat."""
        return self.system if self.baseline else f"{self.system}, {self.schedule}"


class Point(Coordinates, frozen=True, kw_only=True):
    """The figures of one run of a sweep; what is not known is null."""

    simulated: bool
    chains: int
    failed: int
    problems: int
    wall_s: float
    """Wall time of the run, from the first chain's start to the last one's end."""
    tail_s: float
    """The last part of `wall_s`, in which fewer chains lived than the batch size."""
    problems_per_s: float | None
    """Finished problems over the wall time, the tail included. Null, as are the other speeds of the run, where chains failed that an
    engine worked for: their time does not measure speed. Rows that hold no problem fail at once."""
    steady_problems_per_s: float | None
    """Problems that ended before the tail, over the time before it; null where all of the run was tail."""
    output_tokens_per_s: float | None
    """Generated tokens, those that all engines sampled, over the wall time."""
    kept_tokens_per_s: float | None
    """Tokens of thoughts and answers, whichever engine wrote them, over the wall time."""
    chain_p50_s: float | None
    chain_p90_s: float | None
    accuracy: float | None
    acceptance_rate: float | None
    busy_share: dict[str, float]
    """Share of the time in which the engine had at least one request, by role, 0 to 1."""
    facts: dict[str, EngineFacts] = {}
    """What the engines stated about themselves, by role."""
    cache_kept: bool
    """Whether an engine could not empty its prefix cache before this point: it may have held prompts of earlier points."""

    @property
    def timed_s(self) -> float | None:
        """The wall time as a figure of speed: None where chains failed, see `problems_per_s`."""
        return None if self.problems_per_s is None else self.wall_s

    @property
    def kept_tokens(self) -> float | None:
        """Tokens of thought and answer of a problem, of its finished samples together, on average; None where chains failed."""
        return self.kept_tokens_per_s / self.problems_per_s if self.kept_tokens_per_s and self.problems_per_s else None

    @property
    def answers(self) -> str | None:
        """Whose answers these are; told by the clock where the file does not say."""
        return answers(self.facts.values()) if self.facts else "simulated" if self.simulated else None


class Spread(Struct, frozen=True):
    """Median, least and greatest value of a figure over the repeats of one batch size."""

    median: float
    low: float
    high: float


def point_of_run(folder: Path, coordinates: Coordinates, *, simulated: bool, cache_kept: bool) -> Point:
    """The figures of the finished run in `folder`; raises `InputError` where its trace cannot be read.

    `cache_kept` as in `Point`.
    """
    summary = summarize(folder)
    wall_s = summary.wall_time_s or summary.span_s
    tail_s = min(summary.tail_time_s or 0.0, wall_s)
    times = _times(folder, wall_s, tail_s, summary)
    whole = summary.failed == summary.errors.get(BadRow.__name__, 0)
    return Point(
        **structs.asdict(coordinates),
        simulated=simulated,
        chains=summary.chains,
        failed=summary.failed,
        problems=summary.problems,
        wall_s=wall_s,
        tail_s=tail_s,
        problems_per_s=summary.problems_per_s or 0.0 if whole else None,
        output_tokens_per_s=summary.output_tokens_per_s if whole else None,
        kept_tokens_per_s=summary.kept_tokens_per_s if whole else None,
        **(times if whole else dict.fromkeys(times)),
        accuracy=summary.accuracy,
        acceptance_rate=summary.acceptance_rate,
        busy_share={role: engine.busy_share for role, engine in summary.engines.items()},
        facts=engine_facts(RunFile.read(folder)),
        cache_kept=cache_kept,
    )


class _Times(Struct, frozen=True):
    """Times of the chains that finished; null where none did."""

    chain_p50_s: float | None = None
    chain_p90_s: float | None = None
    before_tail: int = 0
    """Those that ended before the tail."""


TIMES = """
SELECT quantile_cont(chain_time_s, 0.5) AS chain_p50_s, quantile_cont(chain_time_s, 0.9) AS chain_p90_s,
       count(*) FILTER (end_unix_ns <= (SELECT max(end_unix_ns) FROM chains WHERE finished) - $tail) AS before_tail
FROM chains WHERE finished
"""


def _times(folder: Path, wall_s: float, tail_s: float, summary: Summary) -> dict[str, float | None]:
    """Latencies of the chains that finished, and problems per second before the tail: chains that ended before it, divided by the samples
    of a problem and by the time before it."""
    with Query(folder) as db:
        found = db.row(TIMES, _Times, tail=round(tail_s * 1e9))
    latencies = {name: value for name, value in structs.asdict(found).items() if name != "before_tail"}
    before_s = wall_s - tail_s
    if before_s <= 0 or found.chain_p50_s is None:
        return latencies | {"steady_problems_per_s": None}
    return latencies | {"steady_problems_per_s": found.before_tail / before_s * summary.problems / summary.chains}


BUSY = "busy_share."
"""Begins the names of the columns that have the busy shares, one for each role."""


def write_points(file: Path, points: Sequence[Point]) -> None:
    """Replace `file` by a Parquet table of `points`."""
    rows = [_row(point) for point in points]
    names = dict.fromkeys(name for row in rows for name in row)
    with new_file(file) as draft:
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), draft)


def read_points(file: Path) -> list[Point]:
    """Read the points that `write_points` wrote into `file`; raises `InputError` where it holds none."""
    with readable(file):
        rows = pq.read_table(file).to_pylist()
    try:
        return [msgspec.convert(_decoded(row), Point) for row in rows]
    except (msgspec.ValidationError, msgspec.DecodeError, KeyError, TypeError) as error:
        raise InputError(str(file), f"holds no points of a sweep: {error}") from error


def _row(point: Point) -> dict[str, Any]:
    """Its fields; of the busy shares one for each role, such as `busy_share.draft`."""
    row = structs.asdict(point) | {"params": _json(point.params), "facts": _json(point.facts)}
    return row | {f"{BUSY}{role}": share for role, share in row.pop("busy_share").items()}


def _decoded(row: dict[str, Any]) -> dict[str, Any]:
    busy = {name.removeprefix(BUSY): share for name, share in row.items() if name.startswith(BUSY) and share is not None}
    facts = msgspec.json.decode(row.get("facts") or "{}")
    return row | {"busy_share": busy, "params": msgspec.json.decode(row["params"]), "facts": facts_of(facts)}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def curves(points: Iterable[Point]) -> dict[str, dict[int, list[Point]]]:
    """Points by curve and batch size; the baseline is the first curve, the others follow in the order of `points`."""
    found: dict[str, dict[int, list[Point]]] = {}
    for point in sorted(points, key=lambda point: not point.baseline):
        found.setdefault(point.curve, {}).setdefault(point.batch_size, []).append(point)
    return {name: dict(sorted(curve.items())) for name, curve in found.items()}


def baselines(found: Mapping[str, dict[int, list[Point]]]) -> dict[str, str]:
    """For each of the curves `found` by `curves` that is not of the target alone, the name of the one that is, on the same engines file
    where there are several; the first curve where none is. The target alone on other engines is compared with the first one as well."""
    first = _first_points(found)
    beside = {point.engines: name for name, point in first.items() if point.baseline}
    default = next(iter(beside.values()), next(iter(first), ""))
    alone = {default, *(beside.get(point.engines) for point in first.values() if not point.baseline)}
    others = {name: point for name, point in first.items() if name not in alone}
    return {name: default if point.baseline else beside.get(point.engines, default) for name, point in others.items()}


def called(name: str, found: Mapping[str, dict[int, list[Point]]]) -> str:
    """What a baseline is called in a sentence: the name of its curve where that is another graph or more than the target alone."""
    first = next(iter(found[name].values()))[0]
    return THE_TARGET if first.baseline and first.graph == TARGET else name


def _first_points(found: Mapping[str, dict[int, list[Point]]]) -> dict[str, Point]:
    return {name: points[0] for name, curve in found.items() for points in list(curve.values())[:1]}


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median, least and greatest of `values` without the unknown ones; None where all are unknown."""
    known = [value for value in values if value is not None]
    return Spread(statistics.median(known), min(known), max(known)) if known else None


class Crossing(Struct, frozen=True, kw_only=True):
    """Where a curve is above and where below the target alone, in problems per second."""

    ratios: dict[int, Spread]
    """By batch size, the curve's throughput over the target's: of the medians, and least and greatest of all pairs of repeats."""
    tokens: dict[int, Spread]
    """The part of it that is shorter text: the target's kept tokens of a problem over the curve's. Without sizes where one is not known."""
    rates: dict[int, Spread]
    """The part of it that is speed: the curve's kept tokens/s over the target's."""
    faster: tuple[int, ...]
    """Batch sizes at which every repeat is faster than every repeat of the target alone."""
    slower: tuple[int, ...]
    """Batch sizes at which every repeat is slower."""
    at: float | None
    """The batch size at which the ratio of medians is 1, interpolated between two measured ones on logarithmic axes; None where
    `faster` or `slower` is empty."""

    def sentence(self, baseline: str = THE_TARGET) -> str:
        """The comparison as an English clause: where the curve is faster, slower or not told apart from the `baseline`, and where the
        curves cross."""
        unsure = [size for size in self.ratios if size not in (*self.faster, *self.slower)]
        said = {"faster than": self.faster, "slower than": self.slower, "not told apart from": unsure}
        parts = [f"{how} {baseline} at {_sizes(sizes)}" for how, sizes in said.items() if sizes]
        return ", ".join(parts) + (f"; the curves cross near batch size {self.at:.3g}" if self.at is not None else "")


def _sizes(sizes: Sequence[int]) -> str:
    return f"batch size{'s' if len(sizes) > 1 else ''} {', '.join(map(str, sizes))}"


def crossing(curve: dict[int, list[Point]], baseline: dict[int, list[Point]]) -> Crossing | None:
    """Compare `curve` with `baseline`, both by batch size; None where no batch size is in both."""
    both = [size for size in curve if size in baseline and all(point.problems_per_s for point in (*curve[size], *baseline[size]))]
    ratios = _ratios(both, curve, baseline, lambda point: point.problems_per_s)
    if not ratios:
        return None
    tokens = _ratios(both, baseline, curve, lambda point: point.kept_tokens)
    rates = _ratios(both, curve, baseline, lambda point: point.kept_tokens_per_s)
    faster = tuple(size for size, ratio in ratios.items() if ratio.low > 1)
    slower = tuple(size for size, ratio in ratios.items() if ratio.high < 1)
    at = _meeting({size: ratio.median for size, ratio in ratios.items()}) if faster and slower else None
    return Crossing(ratios=ratios, tokens=tokens, rates=rates, faster=faster, slower=slower, at=at)


def _ratios(
    sizes: Sequence[int],
    over: Mapping[int, Sequence[Point]],
    under: Mapping[int, Sequence[Point]],
    figure: Callable[[Point], float | None],
) -> dict[int, Spread]:
    """The ratio of a figure between two curves by batch size, without sizes where a point has none, or 0."""
    found = {}
    for size in sizes:
        ours, theirs = (sorted(value for point in curve[size] if (value := figure(point))) for curve in (over, under))
        if len(ours) == len(over[size]) and len(theirs) == len(under[size]):
            found[size] = Spread(statistics.median(ours) / statistics.median(theirs), ours[0] / theirs[-1], ours[-1] / theirs[0])
    return found


def _meeting(ratios: dict[int, float]) -> float | None:
    """The least batch size at which the ratio passes 1, interpolated linearly between logarithms; None where it never does."""
    sizes = sorted(ratios)
    for left, right in pairwise(sizes):
        a, b = math.log(ratios[left]), math.log(ratios[right])
        if a * b < 0:
            return float(left * (right / left) ** (a / (a - b)))
    return None
