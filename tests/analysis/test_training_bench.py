"""The page about trainings: right choices by class, systems that are computed from recorded drafts, and tables of made-up rows."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from pipeline.analysis.compare.runs import RunTable
from pipeline.analysis.quality.estimates import NOTHING, Estimate
from pipeline.analysis.quality.selection import ThoughtChoices
from pipeline.analysis.quality.step_texts import Texts
from tests.support.paths import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import training as tables

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
TRAINED = tables.Trained(name="9 choices", folder="tiny/select", examples=1234, parameters=286_720, steps=900, seconds=90.0)


@pytest.fixture
def scot(table: Make) -> RunTable:
    texts = {
        "written": Texts(np.ones(4), np.full(4, 40.0), np.full(4, 30.0), np.array([0.0, 1.0, 2.0, 3.0])),
        "drafted": Texts(np.ones(4), np.full(4, 40.0), np.full(4, 30.0), np.full(4, 9.0)),
    }
    run = table("scot", [1.0] * 4, right=[1, 1, 0, 1], accepted=np.array([1.0, 1, 0, 0]), fallbacks=np.array([0.0, 0, 1, 1]), texts=texts)
    return structs.replace(run, choices=CHOICES)


def test_right_choices_are_counted_by_class(scot: RunTable) -> None:
    found = tables.selecting("adapter", scot, TRAINED)
    assert (found.class_1.value, found.class_2.value, found.all.value) == (pytest.approx(2 / 3), 1.0, 0.75)
    untuned = structs.replace(CHOICES, rejected=np.ones(4), picked_right=np.zeros(4))
    found = tables.selecting("untuned", structs.replace(scot, choices=untuned))
    assert (found.class_1.value, found.class_2.value, found.all.value) == (0.0, 1.0, 0.25)


def test_a_draft_at_random_is_right_as_often_as_drafts_are(scot: RunTable) -> None:
    found = tables.chance(scot)
    assert (found.class_1.value, found.class_2.value) == (pytest.approx(1.6 / 3), 0.0)
    assert found.all.value == pytest.approx(0.4)
    backwards = ThoughtChoices(*(each[::-1] for each in structs.astuple(CHOICES)[:-2]), True)
    assert tables.random_draft(backwards) == tables.random_draft(CHOICES), "whichever chain ended first"
    assert tables.best_draft(CHOICES).value == 0.75
    assert [each.accuracy.value for each in tables.by_reference(CHOICES)] == [pytest.approx(0.4), 0.75]


def test_a_system_and_its_thoughts(scot: RunTable, table: Make) -> None:
    found = tables.system("scot", scot)
    assert (found.accuracy.value, found.accepted.value, found.tokens["target"].value) == (0.75, 0.5, 10.0)
    assert found.drafts_right.value == pytest.approx(0.4)
    alone = table("target", [1.0] * 4, accepted=np.zeros(4), fallbacks=np.zeros(4))
    assert (tables.system("target", alone).accepted, tables.system("target", alone).drafts_right) == (NOTHING, NOTHING)
    thoughts = tables.thinking("target", scot)
    assert (thoughts.tokens.value, thoughts.second_thoughts.value) == (40.0, 1.5), "drafts are not among its thoughts"


def test_the_page_has_what_was_measured_and_says_what_was_not(scot: RunTable) -> None:
    half = Estimate(0.5, 0.25, 0.75)
    found = tables.PairResults(
        pair="tiny",
        problems=4,
        class_1=3,
        class_2=1,
        selecting=(tables.chance(scot), tables.selecting(tables.UNTUNED, scot), tables.selecting("9 choices", scot, TRAINED)),
        systems=(tables.system("scot", scot), tables.System(name="computed", accuracy=half)),
        alignment=TRAINED,
        thinking=(tables.thinking("target", scot),),
    )
    text = tables.page("`command`", [found], {"wordy": "its models are not there"})
    assert text.startswith("`command`\n\n# What training an adapter brings\n")
    assert "4 test problems; of the choices among their drafts 3 are of class 1, 1 of class 2." in text
    assert "- 9 choices: class 1 from 66.7% [20.8%, 93.9%] to 66.7%" in text
    assert "| 9 choices | 1,234 | 286,720 | 900 | 1.5 | 66.7% [20.8%, 93.9%] | 100.0% [20.7%, 100.0%] | 75.0%" in text
    assert "| computed | 50.0% [25.0%, 75.0%] | - | - | - | - |" in text
    assert "9 choices: 1,234 examples, 286,720 trained parameters, 900 steps, 1.5 minutes." in text
    assert text.endswith("## wordy\n\nNot measured: its models are not there.\n")


def test_there_are_no_more_problems_than_asked_for(tmp_path: Path) -> None:
    tiny = tables.PAIRS[0]
    assert tables.Study(tiny, tmp_path, 900, None).lessons == [250, 1000, 4000]
    small = tables.Study(tiny, tmp_path, 4, 24)
    assert small.lessons == [24]
    assert tables.PAIRS[1].needed[0].name == "test.parquet"
