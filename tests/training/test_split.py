"""Splits and test sets go by the text of a problem."""

from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.training.split import HeldOut, fingerprint, split_of
from tests.support.runs import write_problems


def test_a_problem_is_known_by_its_words() -> None:
    assert fingerprint("How many\n  pens?") == fingerprint(" how many pens?")
    assert fingerprint("How many pens?") != fingerprint("How many pen?")
    assert isinstance(fingerprint("\ud800"), int)


def test_a_share_of_the_problems_is_for_validation() -> None:
    texts = [f"Problem number {number}?" for number in range(2000)]
    splits = [split_of(text, 0.1) for text in texts]
    assert 150 < splits.count("validation") < 250
    assert [split_of(text, 0.0) for text in texts[:50]] == ["train"] * 50
    assert all(split_of(text, 0.3) == "validation" for text, split in zip(texts, splits, strict=True) if split == "validation")


def test_problems_of_a_test_set_are_refused(tmp_path: Path) -> None:
    held_out = HeldOut({"mine": [write_problems(tmp_path, 3)]})
    held_out.check("run", [("a", "another problem")])
    with pytest.raises(UsageError) as refused:
        held_out.check("run", [("a", "another problem"), ("b", "problem  NUMBER 1?"), ("c", "Problem number 2?")])
    assert str(refused.value) == (
        "run: 2 of its 3 problems are in the test set mine, the first is 'b'; train on other problems, or name another test set"
    )
