"""What a report says of a run before its figures, and of runs that have little to show."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pipeline.analysis.simulated import stated
from pipeline.errors import InputError
from pipeline.report.run_sections import (
    MEASURED,
    REPLAYED,
    SIMULATED,
    ReportOptions,
    clock,
    decisions,
    engine_setup,
    notices,
    run_sections,
)
from pipeline.store.run_file import RunFile

pytestmark = pytest.mark.slow  # whole runs


def test_a_simulated_run_is_marked_before_anything_else(ran: Path) -> None:
    run = RunFile.read(ran)
    assert notices(run, "finished") == (SIMULATED, stated([]))
    measured = replace(run, virtual_time=False)
    assert (notices(measured, "finished"), clock(measured)) == ((), MEASURED)
    replayed = replace(run, engine_facts=run.engine_facts | {"draft": {"answers": "simulated", "replay": "/runs/before"}})
    assert notices(replayed, "finished") == (REPLAYED, stated([]))


def test_a_run_that_did_not_finish_says_why(ran: Path) -> None:
    failed = replace(RunFile.read(ran), virtual_time=False, status="failed", error="engine 'draft' died")
    assert notices(failed, "failed") == ("This run is failed (engine 'draft' died): figures count what is in its folder.",)
    going_on = replace(failed, status="running")
    assert notices(going_on, "killed") == ("This run is killed: figures count what is in its folder.",), "what ended it is not on record"


def test_what_was_decided(ran: Path) -> None:
    rows = dict(decisions(RunFile.read(ran)).rows)
    assert rows["graph"].endswith("graphs/speccot.yaml")
    assert rows["stages"].startswith("guidance (generate), draft (draft), verify (choose), fallback (generate)")
    assert "candidates=5" in rows["params"]
    assert "None" not in rows["params"]
    assert rows["batch size"] == "8 chains in flight, pipelined"
    assert rows["samples and seed"] == "1 per problem, seed 0"
    assert rows["clock"] == "simulated"
    engines = {row[0]: row[1:5] for row in engine_setup(RunFile.read(ran)).rows}
    assert engines["target"] == ("QwQ-32B", "sim", "h100-0+1", "256")


def test_a_small_run_has_all_sections(ran: Path) -> None:
    titles = [section.title for section in run_sections(ran, ReportOptions(bins=20))]
    assert titles == [
        "Summary",
        "Engines over time",
        "Chains over time",
        "Where the time goes",
        "Tokens and waste",
        "Steps",
        "Transcripts",
    ]


def test_replicas_have_a_section_of_their_own(replicas: Path) -> None:
    sections = {section.title: section for section in run_sections(replicas, ReportOptions(bins=20))}
    assert list(sections)[:4] == ["Summary", "Engines over time", "Replicas", "Chains over time"]
    section, summary = sections["Replicas"], dict(sections["Summary"].tables[1].rows)
    assert section.text[0].startswith("4 replicas, each with its own engines.")
    assert [figure.title for figure in section.figures] == ["Throughput by replica", "Chains in flight by replica"]
    assert [table.title for table in section.tables] == ["Replicas", "Lost replicas"]
    assert "totals over all 4 replicas" in sections["Engines over time"].text[1]
    assert dict(decisions(RunFile.read(replicas)).rows)["batch size"] == "4 chains in flight on each of 4 replicas, pipelined"
    line = section.figures[1].plot.layout.shapes[0]
    assert float(summary["wall time"].partition(" ")[0]) - line.x0 == pytest.approx(
        float(summary["wall time"].split("(")[1].split()[0]), rel=0.01
    )


@pytest.mark.parametrize("missing", [("chains",), ("chains", "steps", "calls")], ids="+".join)
def test_a_run_without_chains_is_shown_as_far_as_it_goes(
    ran: Path, tmp_path: Path, missing: tuple[str, ...], page_of: Callable[..., str]
) -> None:
    html = page_of(without(ran, tmp_path, missing))
    assert "Summary</h2>" in html
    assert ("Engines over time</h2>" in html) is ("calls" not in missing)
    assert ("Steps</h2>" in html) is ("steps" not in missing)
    assert "Transcripts</h2>" not in html


@pytest.mark.parametrize("missing", ["steps", "calls"])
def test_a_run_that_lacks_rows_of_its_chains_is_refused(ran: Path, tmp_path: Path, missing: str, page_of: Callable[..., str]) -> None:
    with pytest.raises(InputError, match=f"{missing}: lacks .* of the rows that `chains` counts"):
        page_of(without(ran, tmp_path, (missing,)))


def without(ran: Path, folder: Path, tables: tuple[str, ...]) -> Path:
    """A copy of a run without the rows of these tables."""
    shutil.copytree(ran, folder / "cut")
    for table in tables:
        for part in (folder / "cut" / table).iterdir():
            part.unlink()
    return folder / "cut"


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a run folder"):
        run_sections(tmp_path, ReportOptions())
