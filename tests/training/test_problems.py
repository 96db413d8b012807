"""Problems of test sets are found within what a model is asked; splits go by the text of a problem."""

import json
from pathlib import Path

import pytest

from pipeline.errors import InputError, UsageError
from pipeline.training.problems import HeldOutProblems, fingerprint, split_of
from tests.support.runs import write_problems

LONG = "Tom has 3 pens and buys 2 more. How many pens has he now?"


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> HeldOutProblems:
    path = tmp_path_factory.mktemp("sets") / "test.jsonl"
    rows = [
        {"problem": LONG},
        {"problem": "What is 12 + 30?"},
        {"problem": "Compute  $x^2$."},
        {"problem": "Solve: x + 2 = 5"},
        {"problem": "<b>"},
        {"problem": "Find x.\n2x = 4"},
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return HeldOutProblems({"mine": [path]})


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        f"<|user|>{LONG}<|assistant|><think>\nTom",
        "I will provide several Reasons.\n\nQuestion: tom has 3 PENS, and buys 2 more.  How many\npens has he now?\n\nHere are",
        "<|user|>What is 12 + 30?\nPlease reason",
        "Question: What is 12+30\n\nHere",
        "<|user|>Solve: x + 2 = 5\nPlease reason",
        "Question: find x.\n2x = 4\n\nHere",
    ],
)
def test_a_problem_is_found_whatever_is_around_it(held: HeldOutProblems, text: str) -> None:
    assert held.found_in(text) == "mine"


@pytest.mark.parametrize(
    "text",
    [
        LONG.replace("3 pens", "4 pens"),
        "Tom has 3 pens and buys 2 more.",
        "Eve asks what is 12 + 30? Tom does not know.",
        "What is 12 * 30?",
        "Solve: x - 2 = 5",
    ],
)
def test_others_are_not(held: HeldOutProblems, text: str) -> None:
    assert held.found_in(text) is None


def test_gsm8k_calls_a_problem_a_question(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text(json.dumps({"question": LONG, "answer": "5"}) + "\n")
    assert HeldOutProblems({"gsm8k": [path]}).found_in(LONG) == "gsm8k"


def test_a_file_without_problems_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text('{"text": "x"}\n')
    with pytest.raises(InputError, match="odd: is named as a test set but has no problems in a column `problem` or `question`"):
        HeldOutProblems({"odd": [path]})


def test_problems_of_a_test_set_are_refused(tmp_path: Path) -> None:
    held_out = HeldOutProblems({"mine": [write_problems(tmp_path, 3)]})
    held_out.check("run", [("a", "another problem")])
    with pytest.raises(
        UsageError, match=r"^run: its problem 'b' is in the test set mine; train on other problems, or name another test set$"
    ):
        held_out.check("run", [("a", "another problem"), ("b", "problem  NUMBER 1?"), ("c", "Problem number 2?")])


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
