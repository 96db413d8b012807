"""What a page says of a run, before its figures too, of runs that have little to show, and of a sweep."""

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from pipeline.analysis.curves import read_points
from pipeline.analysis.facts import stated
from pipeline.cli.main import run_command
from pipeline.errors import UsageError
from pipeline.show.curves import INK, sweep_charts
from pipeline.show.report import report, sweep_section
from pipeline.show.sections import REPLAYED, SIMULATED, clock, notices, run_figures
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

pytestmark = pytest.mark.slow  # whole runs


def test_a_simulated_run_is_marked_and_one_that_did_not_finish_says_why(ran: Path) -> None:
    run = RunFile.read(ran)
    assert notices(run, "finished") == (SIMULATED, stated([]))
    measured = replace(run, virtual_time=False)
    assert (notices(measured, "finished"), clock(measured)) == ((), "")
    replayed = replace(run, engine_facts=run.engine_facts | {"draft": {"answers": "simulated", "replay": "/runs/before"}})
    assert notices(replayed, "finished") == (REPLAYED, stated([]))
    failed = replace(measured, status="failed", error="engine 'draft' died")
    assert notices(failed, "failed") == ("This run is failed (engine 'draft' died): figures count what is in its folder.",)


def test_a_small_run_has_all_tiles_and_sections(ran: Path) -> None:
    with Query(ran) as db:
        found = run_figures(ran, db)
    assert [section.title.split()[0] for section in found.sections] == ["Every", "Engines", "Tokens", "Steps", "Facts", "Settings"]
    tiles = {tile.label: tile.figure for tile in found.tiles}
    assert list(tiles) == ["accuracy", "problems/s", "speed-up", "acceptance", "bottleneck"]
    assert (tiles["accuracy"][-1], float(tiles["problems/s"]) > 0, tiles["speed-up"]) == ("%", True, "-")
    assert found.notices[-1].startswith("failed: "), "the error stands above the figures"
    options, engines = found.sections[-1].tables
    rows = dict(options.rows)
    assert rows["graph"].endswith("graphs/speccot.yaml")
    assert "candidates=5" in rows["params"]
    assert "None" not in rows["params"]
    assert [rows[name] for name in ("batch size", "schedule", "samples", "replicas")] == ["8", "pipelined", "1", "1"]
    role, device, given = engines.rows[0]
    assert (role, device, "backend=sim, " in given, "model=QwQ-32B" in given) == ("target", "h100-0+1", True, True)


@pytest.mark.parametrize("missing", [("chains",), ("chains", "steps", "calls")], ids="+".join)
def test_a_run_without_chains_is_shown_as_far_as_it_goes(ran: Path, tmp_path: Path, missing: tuple[str, ...]) -> None:
    html = report([shutil.copytree(ran, tmp_path / "cut", ignore=lambda folder, names: names if Path(folder).name in missing else ())])
    assert "<summary>Facts</summary>" in html
    assert ("Engines over time</h2>" in html) is ("calls" not in missing)
    assert ("Steps</h2>" in html) is ("steps" not in missing)
    assert "No chain is like that." in html


def test_every_curve_of_a_sweep_has_its_points_in_one_colour_and_one_batch_size_is_a_table_alone(swept: Path) -> None:
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


def test_the_page_of_a_sweep_is_a_small_file_and_a_sweep_beside_runs_is_refused(swept: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="sweep: is a sweep; name it alone"):
        report([swept, tmp_path])
    assert run_command(["view", str(swept), "-o", str(tmp_path / "report.html")]) == 0
    assert 1e4 < (tmp_path / "report.html").stat().st_size < 1e5
    assert '<tr class="bold">' in (tmp_path / "report.html").read_text()
