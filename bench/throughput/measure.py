"""Throughput by batch size: bundled pairs on real engines, beside their target alone with and without token-level speculation.

    python -m bench.throughput.measure

Makes the inflated target and the problems, then runs bench/throughput/study.yaml, which takes some three hours on two cores and
continues where it stopped. The page has the real pair of `bench.real.measure`, too. Writes bench/throughput.md and
bench/results/throughput.json.
"""

import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct, convert, to_builtins

from bench.figures import ROOT, TRIAL, Results, going_on, grid, origin, percent
from bench.runs import say, whole
from pipeline.analysis.curves import Measured, Spread, ranged, read_points, spread
from pipeline.analysis.tables import plain
from pipeline.options import RunOptions
from pipeline.run.run import Observer
from pipeline.store.run_file import RunFile
from pipeline.study.points import Point
from pipeline.study.run import carry_out
from pipeline.study.study_file import read_study
from tools.make_arith import problem

STUDY, BUILD = Path("bench/throughput/study.yaml"), ROOT / "build/throughput"
PROBLEMS = 1024
COLUMNS = (
    "batch size",
    "system",
    "problems/s",
    "of the target alone",
    "of the best token-level",
    "steady",
    "tail",
    "accepted",
    "accuracy",
)
INTRODUCTION = """\
Medians over three turns, in brackets the least and the greatest; of ratios, over all pairs of turns. A system is compared with the fastest
of the target alone on one core and on both, and with the faster of n-gram speculation and the draft inside the target's engine. Steady:
problems/s before the tail; tail: share of the time in which fewer problems are left than the batch size."""


class Row(Struct, frozen=True):
    """A system at a batch size; lists have an element for each turn."""

    machine: str
    system: str
    batch_size: int
    problems: int
    baseline: bool
    token_level: bool
    problems_per_s: list[float]
    steady_per_s: list[float]
    tail: list[float]
    accuracy: float | None
    accepted: float | None


def measured(heading: str, points: Sequence[Measured]) -> Iterator[Row]:
    """The rows of one part of the study."""
    turns: dict[str, list[Measured]] = {}
    for point in points:
        turns.setdefault(point.label.curve, []).append(point)
    for system, found in turns.items():
        run, label = found[0].run, found[0].label
        fallbacks = run.figures["fallback_rate"].value
        yield Row(
            machine=heading.partition(",")[0],
            system=system.partition(" on ")[0] if not label.baseline else system,
            batch_size=label.batch_size,
            problems=run.problems,
            baseline=label.baseline,
            token_level=any(engine.get("speculative_config") for engine in run.file.engines.values()),
            problems_per_s=[round(each.run.problems_per_s or 0.0, 3) for each in found],
            steady_per_s=[round(each.steady_problems_per_s, 3) for each in found if each.steady_problems_per_s is not None],
            tail=[round(each.tail_s / each.run.mean_wall_time_s, 3) for each in found],
            accuracy=run.figures["accuracy"].value,
            accepted=None if fallbacks is None else 1 - fallbacks,
        )


def fastest(rows: Sequence[Row], *, token_level: bool) -> Row | None:
    """The fastest baseline of one machine and batch size, with or without token-level speculation."""
    found = (each for each in rows if each.baseline and each.token_level is token_level)
    return max(found, key=lambda row: statistics.median(row.problems_per_s), default=None)


def over(row: Row, base: Row | None) -> str:
    """The throughput of `row` over that of `base`."""
    if base is None or base is row:
        return "-"
    ours, theirs = row.problems_per_s, base.problems_per_s
    median = statistics.median(ours) / statistics.median(theirs)
    return ranged(Spread(median, min(ours) / max(theirs), max(ours) / min(theirs)))


def page_of(results: Results) -> str:
    """The page, from the results."""
    rows = convert(results["rows"], list[Row])
    parts = ["# Throughput by batch size", f"{origin(results['measured'])[:-1]}.", INTRODUCTION]
    for machine in dict.fromkeys(row.machine for row in rows):
        here: dict[int, list[Row]] = {}
        for row in rows:
            if row.machine == machine:
                here.setdefault(row.batch_size, []).append(row)
        parts += [f"## The {machine}", grid(COLUMNS, (cells for found in here.values() for cells in _cells(found)))]
    return "\n\n".join(parts) + "\n"


def _cells(rows: Sequence[Row]) -> Iterator[Sequence[str]]:
    """Lines of the table: a machine at a batch size."""
    alone, token_level = (fastest(rows, token_level=each) for each in (False, True))
    for row in rows:
        steady, tail = spread(row.steady_per_s), spread(row.tail)
        yield (
            str(row.batch_size),
            row.system,
            ranged(spread(row.problems_per_s)),
            over(row, alone),
            over(row, token_level),
            plain(steady.median if steady else None),
            percent(tail.median if tail else None),
            percent(row.accepted),
            percent(row.accuracy),
        )


def main() -> None:
    """Run what is missing, then write results and page."""
    with going_on(__file__, BUILD) as (recording, folder):
        if not TRIAL:
            _prepare(folder)
        study = read_study(STUDY, RunOptions(graph=STUDY, input=(), output=folder / "study", resume=True), small=TRIAL)
        whole(carry_out(study, Observer(tell=say), done))
        rows = [row for heading, points in read_points(folder / "study").items() for row in measured(heading, points)]
    recording.write("throughput", {"bench": "throughput", "rows": to_builtins(rows)})


def done(number: int, planned: int, point: Point, run: RunFile) -> None:
    """Tell that a point is finished."""
    say(f"{number}/{planned} {point.folder}: {run.wall_time_s:.1f} s")


def _prepare(folder: Path) -> None:
    """Write the problems, none of which occurs twice, and the inflated target, where they are missing."""
    drawn, rng = dict[str, str](), random.Random(0)
    while len(drawn) < PROBLEMS:
        new = problem(rng)
        drawn[new.text] = str(new.answer)
    pq.write_table(pa.table({"problem": list(drawn), "answer": list(drawn.values())}), folder / "arith.parquet")
    if not (inflated := ROOT / "build/inflated-target").exists():
        subprocess.run([sys.executable, "tools/inflate.py", "pipeline/models/tiny-target", str(inflated)], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
