"""The page of a sweep: its curves, its comparison with the target alone, and the file that the commands leave."""

from pathlib import Path

import pytest

from pipeline.analysis.curves import read_points
from pipeline.cli.main import run_command
from pipeline.errors import UsageError
from pipeline.show.curves import INK, sweep_charts
from pipeline.show.report import report, sweep_section

pytestmark = pytest.mark.slow  # whole runs


def test_every_curve_has_its_points_in_one_colour_and_one_batch_size_is_a_table_alone(swept: Path) -> None:
    [points] = read_points(swept).values()
    charts = {chart.title: chart.panels[0].marks for chart in sweep_charts(points)}
    lines = {mark.name: mark for mark in charts["Throughput by batch size"] if mark.name}
    assert list(lines) == ["target", "speccot candidates=1", "speccot candidates=5"]
    for name, line in lines.items():
        assert list(line.x) == [1, 4]
        assert list(line.y) == [point.run.problems_per_s for point in points if point.label.curve == name]
        assert len({mark.hue for marks in charts.values() for mark in marks if mark.name == name}) == 1
    assert lines["target"].hue == INK
    assert list(lines)[1:] == [mark.name for mark in charts["Throughput over the best baseline"] if mark.name]
    section = sweep_section([point for point in points if point.label.batch_size == 1], "arith")
    assert (section.title, section.charts) == ("arith", [])
    assert "Simulated runs" in section.notices[0]
    assert section.text[-1].startswith("Not alike: speccot candidates=5: max_steps is 256")


def test_the_page_is_a_small_file_and_a_sweep_beside_runs_is_refused(swept: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sweep: is a sweep; name it alone"):
        report([swept, tmp_path])
    assert run_command(["view", str(swept), "-o", str(tmp_path / "report.html")]) == 0
    assert 1e4 < (tmp_path / "report.html").stat().st_size < 1e5
    assert '<tr class="bold">' in (tmp_path / "report.html").read_text()
