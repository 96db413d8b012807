"""The report of a sweep: its folder enters, the HTML of one page leaves. Nothing is written."""

from pathlib import Path

from pipeline.analysis.compare.tables import SIMULATED
from pipeline.analysis.points import Point, read_points
from pipeline.analysis.sweep_tables import crossings, sweep_tables
from pipeline.errors import InputError
from pipeline.report.figures.sweep import sweep_figures
from pipeline.report.page import Section, page

CACHE_KEPT = (
    "An engine of this sweep could not be told to forget between points: prompts of one point may have been in its prefix cache from "
    "points before, so that later points look faster than they are."
)


def is_sweep(folder: Path) -> bool:
    """Did `pipeline sweep` make this folder?"""
    return (folder / "sweep.json").is_file()


def sweep_report(folder: Path) -> str:
    """The page; raises `InputError` where the folder holds no points."""
    if not (folder / "points.parquet").is_file():
        raise InputError(str(folder), "has no finished point: there is nothing to report")
    points = read_points(folder / "points.parquet")
    return page(f"Sweep {folder.resolve().name}", [sweep_section(points)])


def sweep_section(points: list[Point]) -> Section:
    """What the points say: where speculation pays, the curves, and the tables that they are drawn from."""
    return Section(
        title="Throughput by batch size",
        notices=[
            *([SIMULATED] if any(point.simulated for point in points) else []),
            *([CACHE_KEPT] if any(point.cache_kept for point in points) else []),
        ],
        text=[_about(points), *crossings(points)],
        figures=list(sweep_figures(points)),
        tables=sweep_tables(points),
    )


def _about(points: list[Point]) -> str:
    chains, repeats = max(point.chains for point in points), 1 + max(point.repeat for point in points)
    runs = f"{repeats} interleaved runs each" if repeats > 1 else "one run each"
    warm = "" if points[0].simulated else "; engines were opened once, warmed up before, and forgot between the points"
    return f"{len(points)} points of {chains:,} chains, {runs}{warm}."
