"""The report of a sweep: its curves, what it says of the target alone, and the file that the commands leave."""

from pathlib import Path

import pytest

from pipeline.cli.main import run_command
from pipeline.errors import InputError, UsageError
from pipeline.show.figures.runs import INK, over_target, sweep_figures, throughput
from pipeline.show.report import CACHE_KEPT, report, sweep_report, sweep_section
from tests.support.points import POINTS, alone, point, sweep_folder


def test_every_curve_has_its_medians_and_ends() -> None:
    figures = {figure.title: figure.plot for figure in sweep_figures(POINTS)}
    lines = {line.name: line for line in figures["Throughput by batch size"].data}
    assert list(lines) == ["target", "speccot, pipelined"]
    ours = lines["speccot, pipelined"]
    assert (list(ours.x), list(ours.y)) == ([1, 8], [2.0, 8.0])
    assert (list(ours.error_y.array), list(ours.error_y.arrayminus)) == ([0.0, 2.0], [0.0, 2.0])
    assert lines["target"].line.color == INK
    busy = {line.name: list(line.y) for line in figures["Utilization of draft"].data}
    assert busy == {"speccot, pipelined": [0.5]}


def test_the_crossing_is_a_ring_where_the_curves_meet() -> None:
    from pipeline.analysis.points import curves

    line, ring = over_target(curves(POINTS)).data
    assert list(line.y) == [2.0, 0.5]
    assert list(ring.x) == [pytest.approx(8**0.5)]


def test_without_repeats_and_verdicts_only_what_is_known_is_drawn() -> None:
    from pipeline.analysis.points import curves

    titles = [figure.title for figure in sweep_figures(alone((1, 1.0)))]
    assert titles == ["Throughput by batch size", "Utilization of target", "Tail"]
    assert len(throughput(curves(alone((1, 1.0)))).data) == 1


def test_the_page_says_where_speculation_pays_and_what_to_doubt(tmp_path: Path) -> None:
    section = sweep_section([point(2.0, 1, cache_kept=True, simulated=True), *alone((1, 1.0))])
    assert section.notices[-1] == CACHE_KEPT
    assert "Simulated runs" in section.notices[0]
    assert "speccot, pipelined: faster than the target alone at batch size 1." in section.text
    html = report([sweep_folder(tmp_path / "s", POINTS)])
    assert "the curves cross near batch size 2.83" in html
    assert "in the form of SpecCoT" in html


def test_a_sweep_without_points_or_beside_runs_is_refused(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", POINTS)
    with pytest.raises(UsageError, match="s: is a sweep; report it alone"):
        report([folder, tmp_path])
    (folder / "points.parquet").unlink()
    with pytest.raises(InputError, match="s: has no finished point: there is nothing to report"):
        sweep_report(folder)


def test_the_command_writes_into_the_sweep(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = sweep_folder(tmp_path / "s", POINTS)
    assert run_command(["view", str(folder), "-o", str(folder / "report.html")]) == 0
    assert (folder / "report.html").stat().st_size > 1e6
    assert str(folder / "report.html") in capfd.readouterr().out
