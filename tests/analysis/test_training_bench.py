"""The page about trainings: right choices by class, systems that are computed from recorded drafts, and tables of made-up rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from bench.quality import training as bench
from pipeline.analysis.compare.cells import Table
from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.quality.by_problem import Texts
from pipeline.analysis.quality.selection import ThoughtChoices

Make = Callable[..., RunTable]
CHOICES = ThoughtChoices(
    np.array([3, 0, 1, 2]),
    np.array([0.0, 1.0, 0.4, 0.2]),
    np.array([1.0, 0.0, 0.0, 1.0]),
    np.array([0.0, 1.0, 1.0, 0.0]),
    np.array([np.nan, 1.0, 1.0, np.nan]),
    True,
)
"""Three choices of class 1, of which one is rejected, and one of class 2, which is; in the order in which the chains ended."""
TRAINED = bench.Trained(name="9 choices", examples=1234, parameters=286_720, steps=900, seconds=90.0)


@pytest.fixture
def scot(table: Make) -> RunTable:
    texts = {
        "written": Texts(np.ones(4), np.full(4, 40.0), np.full(4, 30.0), np.array([0.0, 1.0, 2.0, 3.0])),
        "drafted": Texts(np.ones(4), np.full(4, 40.0), np.full(4, 30.0), np.full(4, 9.0)),
    }
    run = table("scot", [1.0] * 4, right=[1, 1, 0, 1], accepted=np.array([1.0, 1, 0, 0]), fallbacks=np.array([0.0, 0, 1, 1]), texts=texts)
    return with_choices(run, CHOICES)


def with_choices(run: RunTable, choices: ThoughtChoices) -> RunTable:
    details = structs.replace(run.details, choices=choices)
    return structs.replace(run, read=lambda: details)


def test_right_choices_are_counted_by_class(scot: RunTable) -> None:
    row = bench.choosing("adapter", scot, TRAINED)
    assert row[:5] == ("adapter", "1,234", "286,720", "900", "1.5")
    assert [cell.split()[0] for cell in row[5:]] == ["66.7%", "100.0%", "75.0%"]
    untuned = structs.replace(CHOICES, rejected=np.ones(4), picked_right=np.zeros(4))
    row = bench.choosing("untuned", with_choices(scot, untuned))
    assert [cell.split()[0] for cell in row[1:]] == ["-", "-", "-", "-", "0.0%", "100.0%", "25.0%"]


def test_a_draft_at_random_is_right_as_often_as_drafts_are(scot: RunTable) -> None:
    assert [cell.split()[0] for cell in bench.chance(scot)[-3:]] == ["53.3%", "0.0%", "40.0%"]
    backwards = ThoughtChoices(*(each[::-1] for each in structs.astuple(CHOICES)[:-2]), True)
    assert bench.random_draft(backwards) == bench.random_draft(CHOICES), "whichever chain ended first"
    assert bench.best_draft(CHOICES).value == 0.75
    assert [row[1].split()[0] for row in bench.by_reference(CHOICES)] == ["40.0%", "75.0%"]


def test_a_system_and_its_thoughts(scot: RunTable, table: Make) -> None:
    _, accuracy, right, accepted, target, _ = bench.system("scot", scot)
    assert [cell.split()[0] for cell in (accuracy, right, accepted, target)] == ["75.0%", "40.0%", "50.0%", "10"]
    alone = bench.system("target", table("target", [1.0] * 4, accepted=np.zeros(4), fallbacks=np.zeros(4)))
    assert alone[2:4] == ("-", "-")
    assert [float(cell.split()[0]) for cell in bench.thinking("target", scot)[1:3]] == [40.0, 1.5], "drafts are not among its thoughts"


def test_the_page_has_what_was_measured_and_says_what_was_not(scot: RunTable) -> None:
    found = bench.Section(
        pair="tiny", sentences=("4 test problems.",), tables=(Table("Choosing", bench.CHOOSING, (bench.choosing("9 choices", scot),)),)
    )
    text = bench.page("`command`", [found], {"wordy": "its models are not there"})
    assert text.startswith("`command`\n\n# What training an adapter brings\n")
    assert "## tiny\n\n4 test problems.\n\n" in text
    assert "| 9 choices | - | - | - | - | 66.7% [20.8%, 93.9%] | 100.0% [20.7%, 100.0%] | 75.0%" in text
    assert text.endswith("## wordy\n\nNot measured: its models are not there.\n")


def test_there_are_no_more_problems_than_asked_for(tmp_path: Path) -> None:
    tiny = bench.PAIRS[0]
    assert bench.Study(tiny, tmp_path, 900, None).lessons == [250, 1000, 4000]
    assert bench.Study(tiny, tmp_path, 4, 24).lessons == [24]
    assert bench.PAIRS[1].needed[0].name == "test.parquet"
