"""What a page says of a run, before its figures too, and of runs that have little to show."""

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from pipeline.analysis.facts import stated
from pipeline.show.report import report
from pipeline.show.sections import REPLAYED, SIMULATED, RunFigures, clock, notices, run_figures, settings
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile
from tests.support.replicas import replica_run

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


def test_what_was_decided(ran: Path) -> None:
    options, engines = settings(RunFile.read(ran)).tables
    rows = dict(options.rows)
    assert rows["graph"].endswith("graphs/speccot.yaml")
    assert "candidates=5" in rows["params"]
    assert "None" not in rows["params"]
    assert (rows["batch size"], rows["schedule"], rows["samples"], rows["replicas"]) == ("8", "pipelined", "1", "1")
    role, device, settings_line = engines.rows[0]
    assert (role, device) == ("target", "h100-0+1")
    assert "backend=sim, " in settings_line
    assert "model=QwQ-32B" in settings_line


def figures(folder: Path) -> RunFigures:
    with Query(folder) as db:
        return run_figures(folder, db)


def test_a_small_run_has_all_tiles_and_sections(ran: Path, tmp_path: Path) -> None:
    found = figures(ran)
    assert [section.title.split()[0] for section in found.sections] == ["Every", "Engines", "Tokens", "Steps", "Facts", "Settings"]
    tiles = {tile.label: tile.figure for tile in found.tiles}
    assert list(tiles) == ["accuracy", "problems/s", "speed-up", "acceptance", "bottleneck"]
    assert tiles["accuracy"].endswith("%")
    assert float(tiles["problems/s"]) > 0
    assert tiles["speed-up"] == "-"
    assert found.notices[-1].startswith("failed: "), "the error stands above the figures"
    assert "on any of 2 replicas" in str(figures(replica_run(tmp_path, 2)).sections[-2].tables[0])


@pytest.mark.parametrize("missing", [("chains",), ("chains", "steps", "calls")], ids="+".join)
def test_a_run_without_chains_is_shown_as_far_as_it_goes(ran: Path, tmp_path: Path, missing: tuple[str, ...]) -> None:
    shutil.copytree(ran, tmp_path / "cut")
    for table in missing:
        for part in (tmp_path / "cut" / table).iterdir():
            part.unlink()
    html = report([tmp_path / "cut"])
    assert "<summary>Facts</summary>" in html
    assert ("Engines over time</h2>" in html) is ("calls" not in missing)
    assert ("Steps</h2>" in html) is ("steps" not in missing)
    assert "No chain is like that." in html
