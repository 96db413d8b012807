"""The page of a sweep: its curves, its comparison with the target alone, and the file that the commands leave."""

from pathlib import Path

import pytest

from pipeline.analysis.points import curves
from pipeline.cli.main import run_command
from pipeline.errors import InputError, UsageError
from pipeline.show.curves import INK, sweep_charts
from pipeline.show.report import CACHE_KEPT, report, sweep_section
from tests.support.points import POINTS, alone, point, sweep_folder


def test_every_curve_has_its_medians_and_ends() -> None:
    charts = {chart.title: chart.panels[0].marks for chart in sweep_charts(POINTS)}
    marks = charts["Throughput by batch size"]
    lines = {mark.name: mark for mark in marks if mark.name}
    assert list(lines) == ["target", "speccot, pipelined"]
    ours = lines["speccot, pipelined"]
    assert (list(ours.x), list(ours.y)) == ([1, 8], [2.0, 8.0])
    assert [(each.low, each.y) for each in marks if each.kind == "bounds" and each.hue == ours.hue] == [([2.0, 6.0], [2.0, 10.0])]
    assert lines["target"].hue == INK
    assert {mark.name: list(mark.y) for mark in charts["Utilization of draft"] if mark.name} == {"speccot, pipelined": [0.5]}
    hues = {mark.hue for title in charts for mark in charts[title] if mark.name == "speccot, pipelined"}
    assert len(hues) == 1, "a system has one colour in all charts"


def test_a_dot_is_where_the_curves_meet() -> None:
    assert len(curves(POINTS)) == 2
    [chart] = [chart for chart in sweep_charts(POINTS) if chart.title == "Speed-up over the target alone"]
    one, *_, dot = chart.panels[0].marks
    [line] = [mark for mark in chart.panels[0].marks if mark.name]
    assert (list(one.y), list(line.y), dot.x) == ([1, 1], [2.0, 0.5], [pytest.approx(8**0.5)])


def test_without_repeats_and_verdicts_only_what_is_known_is_drawn() -> None:
    assert [chart.title for chart in sweep_charts(alone((1, 1.0)))] == ["Throughput by batch size", "Utilization of target", "Tail"]


def test_the_page_says_where_speculation_pays_and_what_to_doubt(tmp_path: Path) -> None:
    section = sweep_section([point(2.0, 1, cache_kept=True, simulated=True), *alone((1, 1.0))])
    assert section.notices[-1] == CACHE_KEPT
    assert "Simulated runs" in section.notices[0]
    assert "speccot, pipelined: faster than the target alone at batch size 1." in section.text
    html = report([sweep_folder(tmp_path / "s", POINTS)])
    assert "the curves cross near batch size 2.83" in html


def test_a_sweep_without_points_or_beside_runs_is_refused(tmp_path: Path) -> None:
    folder = sweep_folder(tmp_path / "s", POINTS)
    with pytest.raises(UsageError, match="s: is a sweep; name it alone"):
        report([folder, tmp_path])
    (folder / "points.parquet").unlink()
    with pytest.raises(InputError, match="s: has no finished point: there is nothing to show"):
        report([folder])


def test_the_command_writes_into_the_sweep(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = sweep_folder(tmp_path / "s", POINTS)
    assert run_command(["view", str(folder), "-o", str(folder / "report.html")]) == 0
    assert 1e4 < (folder / "report.html").stat().st_size < 1e5
    assert str(folder / "report.html") in capfd.readouterr().out
