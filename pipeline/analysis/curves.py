"""The points of a sweep or a study, which are run folders: its folder enters; curves over the batch size, the table that compares them, and
sentences on where one is faster leave.

`sweep.json` says what each folder is, `runs/` has them. Runs that are not finished are in no table.
"""

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct

from pipeline.analysis.compare import Run, flags_of, read_runs
from pipeline.analysis.facts import of_answers, stated
from pipeline.analysis.papers import paper_table
from pipeline.analysis.tables import Table, plain, plain_percent
from pipeline.errors import InputError, UsageError, boundary
from pipeline.options import ScheduleName
from pipeline.store.folder import FILE
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

SWEEP = "sweep.json"
TAIL = """
WITH changes AS (SELECT start_unix_ns AS t, 1 AS change FROM chains UNION ALL SELECT end_unix_ns, -1 FROM chains),
     lives AS (SELECT sum(sum(change)) OVER (ORDER BY t) AS live, lead(t, 1, t) OVER (ORDER BY t) AS until FROM changes GROUP BY t),
     filled AS (SELECT max(until) AS t FROM lives WHERE live >= least($batch_size, (SELECT max(live) FROM lives)))
SELECT (max(end_unix_ns) - any_value(t)) / 1e9 AS tail_s, count(*) FILTER (finished AND end_unix_ns <= t) AS before FROM chains, filled
"""
"""The tail begins when for the last time as many chains live as the batch size, or as ever did."""
NOTE = (
    "* the best baseline. problems/s: medians over repeats, in brackets their least and greatest; x baseline: over the best baseline's; "
    "steady: before the tail, unless fewer than a batch ended there; tail: share of the time with fewer live chains than the batch size."
)


class Label(Struct, frozen=True, kw_only=True):
    """What tells a point from the others that it is compared with."""

    system: str
    """The graph's name and the params that vary: `speccot candidates=5`."""
    engines: str = ""
    """Name of the engines file where there are several."""
    data: str = ""
    """What the problems are called where there are several data sets."""
    schedule: ScheduleName = "pipelined"
    batch_size: int
    repeat: int = 0
    """Number of the repetition, from 0."""
    seed: int | None = None
    """The seed where there are several."""
    baseline: bool = False
    """Whether this is a run of the target alone, with which the others are compared."""

    @property
    def curve(self) -> str:
        """The name of its curve: points with the same name differ only in batch size, repeat and seed."""
        schedule = "" if self.schedule == "pipelined" else f", {self.schedule}"
        return f"{self.system} on {self.engines}{schedule}" if self.engines else f"{self.system}{schedule}"

    @property
    def folder(self) -> str:
        """The name of its run folder, in the folder `runs` of the sweep."""
        seed = "" if self.seed is None else f" s{self.seed}"
        return re.sub(r"[^\w.=+-]+", "_", f"{self.data} {self.curve} b{self.batch_size} r{self.repeat}{seed}".strip())


class SweepCard(Struct, frozen=True, kw_only=True):
    """The content of `sweep.json`."""

    title: str = ""
    """Of a study: what is studied, and where a paper says it."""
    groups: dict[str, tuple[Label, ...]]
    """By heading the points that are compared with each other."""
    tables: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Names as of `compare --table`, each with the folders of the runs that it is over."""


class Measured(Struct, frozen=True, kw_only=True):
    """A point whose run is finished."""

    label: Label
    run: Run
    tail_s: float
    steady_problems_per_s: float | None
    """Problems that ended before the tail, over the time before it; null where fewer than a batch did."""


Curve = Mapping[int, Sequence[Measured]]
"""Points by batch size."""


class Spread(Struct, frozen=True):
    """Median, least and greatest value of a figure over the repeats of one batch size."""

    median: float
    low: float
    high: float


def read_card(folder: Path) -> SweepCard:
    """What the folders of the sweep in `folder` are; raises `InputError`."""
    with boundary(InputError, str(folder / SWEEP), foreign=(OSError, msgspec.MsgspecError)):
        return msgspec.json.decode((folder / SWEEP).read_bytes(), type=SweepCard)


def chains_done(run: Path) -> int | None:
    """The number of finished chains of the run in a folder; None where it is not finished."""
    file = RunFile.read(run) if (run / FILE).is_file() else None
    return file.totals.chains_done if file and file.status == "finished" else None


def read_points(folder: Path) -> dict[str, list[Measured]]:
    """By heading the finished points of the sweep in `folder` that have a finished chain; raises `InputError` where there are none."""
    groups = read_card(folder).groups
    names = dict.fromkeys(label.folder for labels in groups.values() for label in labels)
    there = [path for name in names if chains_done(path := folder / "runs" / name)]
    if not there:
        raise InputError(str(folder), "has no finished point: there is nothing to show")
    runs = {run.folders[0].name: run for run in read_runs(there)}
    found = {
        heading: [_measured(label, runs[label.folder]) for label in labels if label.folder in runs] for heading, labels in groups.items()
    }
    return {name: points for name, points in found.items() if points}


def _measured(label: Label, run: Run) -> Measured:
    batch_size = run.file.options.max_live
    with Query(run.folders[0]) as db:
        [(tail_s, before)] = db.stream(TAIL, batch_size=batch_size)
    steady_s = (run.wall_time_s or 0.0) - tail_s
    steady = before / steady_s * run.problems / run.ends.finished if steady_s > 0 and before >= batch_size else None
    return Measured(label=label, run=run, tail_s=tail_s, steady_problems_per_s=steady)


def curves(points: Iterable[Measured]) -> dict[str, dict[int, list[Measured]]]:
    """Points by curve and batch size; baselines are first, the others follow in the order of `points`."""
    found: dict[str, dict[int, list[Measured]]] = {}
    for point in sorted(points, key=lambda point: not point.label.baseline):
        found.setdefault(point.label.curve, {}).setdefault(point.label.batch_size, []).append(point)
    return {name: dict(sorted(curve.items())) for name, curve in found.items()}


def label_of(curve: Curve) -> Label:
    """The label of the first point of a curve."""
    return next(iter(curve.values()))[0].label


def best_baseline(name: str, found: Mapping[str, Curve], size: int) -> str | None:
    """The fastest other baseline for a curve at a batch size: of those on its engines, and on engines on which nothing else runs."""
    own, systems = label_of(found[name]).engines, {label_of(curve).engines for curve in found.values() if not label_of(curve).baseline}
    alone = (each for each, curve in found.items() if label_of(curve).baseline and each != name)
    rates = {each: rate.median for each in alone if (rate := speed(found[each].get(size, ())))}
    fair = [each for each in rates if own not in systems or (engines := label_of(found[each]).engines) == own or engines not in systems]
    return max(fair, key=rates.__getitem__, default=None)


def speed(points: Sequence[Measured]) -> Spread | None:
    """Problems a second of the points of one batch size; None where chains failed, as their time does not measure speed."""
    rates = [point.run.problems_per_s for point in points]
    return spread(rates) if all(rates) else None


def spread(values: Iterable[float | None]) -> Spread | None:
    """Median, least and greatest of `values` without the unknown ones; None where all are unknown."""
    known = [value for value in values if value is not None]
    return Spread(statistics.median(known), min(known), max(known)) if known else None


def ratios(name: str, found: Mapping[str, Curve]) -> dict[int, Spread]:
    """By batch size, the throughput of a curve over its best baseline's: of medians, and least and greatest of all pairs of repeats."""
    over = {}
    for size, points in found[name].items():
        if (alone := best_baseline(name, found, size)) and (ours := speed(points)) and (theirs := speed(found[alone][size])):
            over[size] = Spread(ours.median / theirs.median, ours.low / theirs.high, ours.high / theirs.low)
    return over


def crossing(over: Mapping[int, Spread]) -> float | None:
    """The least batch size at which a ratio passes 1, interpolated between logarithms; None where it is not surely on both sides of it."""
    sure = any(each.low > 1 for each in over.values()) and any(each.high < 1 for each in over.values())
    for left, right in pairwise(sorted(over) if sure else ()):
        a, b = math.log(over[left].median), math.log(over[right].median)
        if a * b < 0:
            return float(left * (right / left) ** (a / (a - b)))
    return None


def verdict(name: str, found: Mapping[str, Curve]) -> str:
    """A sentence: at which batch sizes a curve is faster than its best baseline, and at which slower. Empty without a baseline."""
    over, said = ratios(name, found), dict[str, list[str]]()
    for size, ratio in over.items():
        how = "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "not told apart"
        said.setdefault(how, []).append(f"{size} ({ratio.median:.2f} times)")
    alone = dict.fromkeys(best_baseline(name, found, size) for size in over)
    against = "the best baseline" if len(alone) > 1 else "the target alone" if "target" in alone else next(iter(alone), "")
    parts = [f"{how} at batch size {', '.join(sizes)}" for how, sizes in said.items()]
    cross = "" if (at := crossing(over)) is None else f"; the curves cross near batch size {at:.3g}"
    return f"{name} against {against}: {', '.join(parts)}{cross}." if parts else ""


def advice(points: Sequence[Measured]) -> list[str]:
    """The `verdict` on each curve but the first baseline: the fastest first, further baselines last."""
    found = curves(points)
    best = {name: max((each.median for each in ratios(name, found).values()), default=0.0) for name in found}
    others = sorted(list(found)[1:], key=lambda name: (label_of(found[name]).baseline, -best[name]))
    return list(filter(None, (verdict(name, found) for name in others)))


def unlike(points: Sequence[Measured]) -> Iterator[str]:
    """A sentence for each curve on reasons other than its graph why it may differ from its baseline."""
    found = curves(points)
    for name, curve in found.items():
        pairs = [(each[0].run, found[alone][size][0].run) for size, each in curve.items() if (alone := best_baseline(name, found, size))]
        clauses = dict.fromkeys(clause for pair in pairs for clause in flags_of(*pair))
        if clauses and not label_of(curve).baseline:
            yield f"Not alike: {name}: {'; '.join(clauses)}."


def sweep_table(points: Sequence[Measured], title: str = "") -> Table:
    """Throughput by batch size and system: a row for each, the fastest of a batch size bold, its best baseline with a star."""
    found = curves(points)
    over = {name: ratios(name, found) for name in found}
    rows, bold = list[tuple[str, ...]](), list[int]()
    for size in sorted({point.label.batch_size for point in points}):
        here = {name: curve[size] for name, curve in found.items() if size in curve}
        known = {name: rate.median for name, runs in here.items() if (rate := speed(runs))}
        best = max((name for name in known if label_of(found[name]).baseline), key=known.__getitem__, default="")
        for name, runs in here.items():
            bold += [len(rows)] if known and name == max(known, key=known.__getitem__) else []
            label, ratio = (f"{name} *", None) if name == best else (name, over[name].get(size))
            rows.append((str(size), label, *_cells(runs, ratio)))
    simulated = [facts for point in points if point.run.file.virtual_time for facts in point.run.facts.values()]
    columns = ("batch size", "system", "problems/s", "x baseline", "steady", "tail", "accuracy")
    note = f"{NOTE} {stated(simulated)}" if simulated else NOTE
    return Table(title or "Throughput by batch size", columns, tuple(rows), note, tuple(bold))


def _cells(points: Sequence[Measured], ratio: Spread | None) -> tuple[str, ...]:
    first, failed = points[0].run, sum(point.run.ends.failed for point in points)
    right = of_answers(first.figures["accuracy"].value, first.answers)
    tail = spread(point.tail_s / point.run.wall_time_s if point.run.wall_time_s else None for point in points)
    steady = spread(point.steady_problems_per_s for point in points)
    return (
        ranged(speed(points)),
        "-" if ratio is None else f"{ratio.median:.2f}",
        plain(steady.median if steady else None),
        plain_percent(tail.median if tail else None),
        f"{right} ({failed} chains failed)" if failed else right,
    )


def ranged(figure: Spread | None) -> str:
    """A median and, where the printed values of the repeats differ, the least and greatest in brackets."""
    if figure is None:
        return "-"
    value, low, high = map(plain, (figure.median, figure.low, figure.high))
    return value if low == high else f"{value} [{low}, {high}]"


def study_tables(folder: Path) -> Iterator[str | Table]:
    """The papers' tables of a study over its finished runs; a sentence for one that cannot be made, and for runs that are in none."""
    card = read_card(folder)
    done = {name: chains_done(folder / "runs" / name) for _, runs in card.tables for name in runs}
    for table, runs in card.tables:
        there = [folder / "runs" / name for name in runs if done[name]]
        try:
            yield paper_table(table, read_runs(there, pooled=True)) if there else f"{table}: no run of it is finished."
        except UsageError as error:
            yield f"{table}: {error}."
    if missing := sum(count is None for count in done.values()):
        yield f"{missing} runs of these tables are not finished: they are in none of them."
    if empty := [name for name, count in done.items() if count == 0]:
        yield f"All chains failed in {', '.join(empty)}: in none of these tables."
