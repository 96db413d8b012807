"""The section of a report on chains that were switched, and the figures behind it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from pipeline.analysis.ledger import ledger
from pipeline.analysis.summary import summarize
from pipeline.analysis.time.modes import ChangeAt, ModesOverTime, ModeTime
from pipeline.report.figures import engines as figures_modes
from pipeline.report.run_sections import ReportOptions, run_sections
from tests.support.runs import write_problems
from tests.support.switching import AtTimes, solve_switched

COUNT = 3


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("switched")
    with pytest.MonkeyPatch.context() as patch:
        solve_switched(patch, AtTimes(0.5, 1.1, 1.6), folder, input=write_problems(folder, COUNT))
    return folder / "run"


def found() -> ModesOverTime:
    speculative = ModeTime(chains=np.array([0.0, 2.0]), tokens_per_s=np.array([0.0, 30.0]), steps=3, tokens=60, chain_s=4.0)
    direct = ModeTime(chains=np.array([2.0, 0.0]), tokens_per_s=np.array([50.0, 0.0]), steps=2, tokens=100, chain_s=4.0)
    changes = tuple(
        ChangeAt(at_s=float(second), what=f"change {second}", speculating=1, live=2, speculative=31.0, direct=None) for second in range(50)
    )
    return ModesOverTime(edges_s=np.array([0.0, 2.0, 4.0]), modes={"speculative": speculative, "direct": direct}, changes=changes)


def test_the_figure_has_what_happened_beside_what_was_expected() -> None:
    drawn = [(trace.name, trace.yaxis, list(trace.y)) for trace in figures_modes.modes(found()).data]
    assert drawn == [
        ("speculative", "y", [0, 2]),
        ("speculative", "y2", [0, 30]),
        ("target only", "y", [2, 0]),
        ("target only", "y2", [50, 0]),
        ("expected, as decided", "y2", [31.0] * 50),
    ]


def test_what_each_of_several_controls_expected_of_its_own_chains_is_not_drawn_beside_all() -> None:
    drawn = {trace.name for trace in figures_modes.modes(replace(found(), replicas=4)).data}
    assert drawn == {"speculative", "target only"}


def test_the_tables_say_it_in_numbers() -> None:
    assert figures_modes.modes_table(found()).rows == (
        ("speculative", "3", "60", "4 s (50.0%)", "15"),
        ("target only", "2", "100", "4 s (50.0%)", "25"),
    )
    decisions = figures_modes.changes_table(found())
    assert decisions.rows[1] == ("1.000", "change 1", "1 of 2", "31", "-")
    assert (len(decisions.rows), decisions.note) == (40, "The first 40; 10 more are in run.json.")


@pytest.mark.slow
def test_a_report_shows_modes_where_chains_were_switched(switched: Path, ran: Path) -> None:
    [section] = [each for each in run_sections(switched, ReportOptions(bins=20)) if each.title == "Modes over time"]
    assert [table.title for table in section.tables] == ["Modes", "Controller decisions"]
    assert len(section.figures) == 1
    assert "Modes over time" not in [each.title for each in run_sections(ran, ReportOptions(bins=20))]


def test_what_was_interrupted_is_no_waste_and_no_failure(switched: Path) -> None:
    steps, summary = rows_of(switched), summarize(switched)
    assert "interrupted" in {row["decision"] for row in steps}
    target = ledger(switched).engines["target"]
    assert target.output["written"] == sum(len(row["step_token_ids"]) for row in steps if row["mode"] == "direct")
    assert target.output["unrecorded"] == 0
    assert sum(target.output.values()) == target.counted_output
    assert summary.stages["response"].failed_calls == 0
    assert summary.thought_tokens == sum(len(row["step_token_ids"]) for row in steps)


def rows_of(folder: Path, table: str = "steps") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / table).to_pylist()
    return found
