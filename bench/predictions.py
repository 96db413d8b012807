"""What engines fitted to two points of a measured sweep predict of all of it. Used by bench/calibration.py.

Twice: with the recorded text, where a run of the same system at another batch size is replayed with the fitted costs, and with
text that the fitted engines write themselves, of the lengths of one recorded run.
"""

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from grids import origin
from kept_runs import whole
from recording import KEPT

from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.written import markdown_table
from pipeline.analysis.points import Point, curves, read_points, spread
from pipeline.analysis.sweep_tables import ranged
from pipeline.calibration.calibrate import calibrate
from pipeline.calibration.engines_file import engines_file, fit_lines
from pipeline.engines.sim.text import sim_answer
from pipeline.graph.yaml_file import setting, written
from pipeline.session.options import RunOptions
from pipeline.session.run import run
from pipeline.store.run_file import RunFile
from pipeline.sweep.plan import PlannedPoint, SweepOptions
from pipeline.sweep.sweep import sweep

ROOT = Path(__file__).parent.parent
FITTED = ("speccot candidates=5, pipelined", (1, 64))
"""The curve and the batch sizes that the fit sees."""
RECORDED_AT = 8
"""Batch size of the runs whose text is replayed."""
STATED = ("median_error", "own_text_error")
Key = tuple[str, int]


def predicted(measured: Path) -> tuple[list[str], dict[str, float]]:
    """The section of the page, and the median errors that are stated next to simulated speeds."""
    points = read_points(measured / "points.parquet")
    if failed := sum(point.failed for point in points):
        raise click.ClickException(f"{measured}: {failed} chains failed; nothing is fitted to such runs")
    found = curves(points)
    name, sizes = FITTED
    runs = [measured / "runs" / _folder(found[name][size][0]) for size in sizes]
    calibration = calibrate(runs)
    with TemporaryDirectory(prefix="predictions-") as folder:
        engines = Path(folder) / "calibration.yaml"
        engines.write_text(engines_file(calibration))
        replayed = dict(_replayed(found, measured, engines, Path(folder)))
        simulated = dict(_simulated(found, measured, engines, Path(folder)))
    table, errors = _table(found, replayed, simulated)
    held = [key for key in errors if key not in {(name, size) for size in sizes}]
    medians = {which: float(np.median([abs(errors[key][place]) for key in held])) for place, which in enumerate(STATED)}
    fit = (
        f"`pipeline calibrate` on two runs of the torch sweep in scaling.md ({name}, batch sizes {' and '.join(map(str, sizes))}): "
        + "; ".join(fit_lines(calibration))
        + f". All other points are held out. {_sweep(measured)}"
    )
    return ["## What was measured here, predicted", fit, markdown_table(table), _said(errors, len(held), medians)], medians


def _sweep(measured: Path) -> str:
    """How the sweep came to be, where that was kept."""
    kept = measured.parent / KEPT
    return f"The sweep: {origin(json.loads(kept.read_bytes()))[:-1]}.".replace("\n", " ") if kept.exists() else ""


def _said(errors: dict[Key, tuple[float, float]], held: int, medians: dict[str, float]) -> str:
    """How far off held-out points are, and why those that the fit has seen are not met exactly."""
    name, sizes = FITTED
    recorded, own = (", ".join(f"{errors[name, size][place]:+.0%}" for size in sizes) for place in range(len(STATED)))
    return (
        f"Median error of the {held} held-out points: {medians[STATED[0]]:.0%} with recorded text, {medians[STATED[1]]:.0%} with text of "
        "the fitted engines, which is longer: a simulated step says which one it is, and that alone takes more tokens than most steps of "
        "the bundled models have. What the orchestration costs on the same two cores is not simulated.\n\nThe points marked *(fitted)* "
        f"are those that the fit has seen. Their wall times are not met exactly either ({recorded} with recorded text, {own} with text of "
        "the fitted engines): the fit minimizes the error of single calls, knows nothing of the orchestration, and does not choose the "
        "text."
    )


def state(median_error: float, own_text_error: float) -> None:
    """Write the median errors into the package, which states them next to every simulated speed."""
    path = ROOT / "pipeline/analysis/simulated.py"
    text = re.sub(r"^MEDIAN_ERROR = .*$", f"MEDIAN_ERROR = {median_error:.2f}", path.read_text(), flags=re.MULTILINE)
    path.write_text(re.sub(r"^OWN_TEXT_ERROR = .*$", f"OWN_TEXT_ERROR = {own_text_error:.2f}", text, flags=re.MULTILINE))


def _folder(point: Point) -> str:
    return PlannedPoint(system=None, coordinates=point).name  # type: ignore[arg-type]


def _replayed(found: dict[str, dict[int, list[Point]]], measured: Path, engines: Path, folder: Path) -> Iterator[tuple[Key, float]]:
    """Wall seconds of every point with the text that its system said at `RECORDED_AT`."""
    for curve in found.values():
        recorded = measured / "runs" / _folder(curve[RECORDED_AT][0])
        card = RunFile.read(recorded)
        for size, points in curve.items():
            settings = [setting(param, value) for param, value in card.plan.params.items()]
            settings += [setting(f"engines.{role}.costs_from", str(engines)) for role in card.plan.engines]
            options = RunOptions(
                graph=Path(card.options["graph"]),
                input=Path(card.options["input"]),
                engines=Path(f"replay:{recorded}"),
                settings=tuple(settings),
                batch_size=size,
                schedule=points[0].schedule,  # type: ignore[arg-type]
                limit=card.options.get("limit"),
                output=folder / f"{recorded.name}-{size}",
            )
            yield (points[0].curve, size), float(whole(run(options)).run.wall_time_s or 0)


def _simulated(found: dict[str, dict[int, list[Point]]], measured: Path, engines: Path, folder: Path) -> Iterator[tuple[Key, float]]:
    """The same with the text of the fitted engines: a sweep over as many simulated problems."""
    every = [point for curve in found.values() for points in curve.values() for point in points]
    texts = [f"Simulated problem {i}." for i in range(max(point.problems for point in every))]
    pq.write_table(pa.table({"problem": texts, "answer": list(map(sim_answer, texts))}), folder / "problems.parquet")
    varied: dict[str, Any] = {}
    for point in every:
        for param, value in point.params.items():
            varied.setdefault(param, {})[written(value)] = None
    options = SweepOptions(
        graphs=tuple(ROOT / f"graphs/{graph}.yaml" for graph in dict.fromkeys(point.graph for point in every if not point.baseline)),
        input=folder / "problems.parquet",
        batch_sizes=tuple(sorted({point.batch_size for point in every})),
        schedules=tuple(dict.fromkeys(point.schedule for point in every)),  # type: ignore[arg-type]
        vary={param: tuple(values) for param, values in varied.items()},
        engines=(engines,),
        output=folder / "sweep",
    )
    yield from (((point.curve, point.batch_size), point.wall_s) for point in whole(sweep(options)).points)


def _table(
    found: dict[str, dict[int, list[Point]]], replayed: dict[Key, float], simulated: dict[Key, float]
) -> tuple[Table, dict[Key, tuple[float, float]]]:
    rows, errors = [], {}
    for name, curve in found.items():
        for size, points in curve.items():
            wall = statistics.median(point.wall_s for point in points)
            both = (replayed[name, size], simulated[name, size])
            errors[name, size] = (both[0] / wall - 1, both[1] / wall - 1)
            seen = " (fitted)" if name == FITTED[0] and size in FITTED[1] else ""
            cells = [cell for value, error in zip(both, errors[name, size], strict=True) for cell in (f"{value:.3g}", f"{error:+.0%}")]
            rows.append((f"{name}{seen}", str(size), ranged(spread(point.wall_s for point in points)), *cells))
    columns = ("curve", "batch size", "measured s", "predicted s, recorded text", "error", "predicted s, own text", "error")
    return Table("Wall time of a measured sweep, and of the fitted engines on virtual time", columns, tuple(rows)), errors
