"""Toy models that are given problems of another kind than they know."""

from pathlib import Path

from pipeline.bundled import FOLDERS
from pipeline.data.in_memory import ProblemList
from pipeline.data.many_files import open_files
from pipeline.data.part import ALL
from pipeline.session.notices import strange_problems
from pipeline.session.prepare import load_plan
from tests.support.paths import ROOT, SIM

SPECCOT = ROOT / "graphs/speccot.yaml"


def test_problems_of_another_kind_are_said_with_one_that_they_know() -> None:
    problems = ProblemList(["What is 12 + 30?", "Ada has 9 pens. Ada buys 2. How many pens has Ada now?"], {}, ALL)
    [said] = strange_problems(load_plan(SPECCOT, Path("tiny")), problems)
    assert said.startswith("toy models: tiny-target and tiny-draft know only problems like 'Tom has 4 books. ")
    assert "1 of the first 2 problems are of another kind; name your own models with --model" in said
    assert list(strange_problems(load_plan(SPECCOT, SIM), problems)) == []


def test_all_problems_of_their_data_set_are_known() -> None:
    for split in ("test", "validation"):
        problems = open_files([FOLDERS["data set"] / f"arith/{split}.parquet"])
        assert list(strange_problems(load_plan(SPECCOT, Path("tiny")), problems)) == []
