"""SCoT's published files, record by record."""

from typing import Any

import pytest

from pipeline.data.rows import Flaw
from pipeline.training.lora.published import Choice, Thought, parse_choice, parse_thought
from tests.support.training_data import BEGIN, SAYS, USER, published_choice

ASKED = f"{BEGIN}{BEGIN}{USER}How many <b>?{SAYS}"


def test_a_thought_is_all_behind_the_first_mark() -> None:
    row = parse_thought({"pred": f"{ASKED}<think>\nFirst, 2 <think> 3.\n\nSo 5.\n</think>"})
    assert row == Thought("How many <b>?", "First, 2 <think> 3.\n\nSo 5.\n</think>")
    assert row.closed


def test_a_thought_that_was_cut_is_taken_as_it_is() -> None:
    row = parse_thought({"pred": f"{ASKED}<think>\nFirst, and"})
    assert (row.thought, row.closed) == ("First, and", False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (3, "`pred` is int, expected text"),
        ("First, 2 + 3.", "`pred` is not <｜User｜>PROBLEM<｜Assistant｜><think>THOUGHT"),  # noqa: RUF001 - as published
        (f"{ASKED}so", "`pred` is not"),
        (f"{ASKED}<think>\n\n</think>", "`pred` has no thought after <think>"),
    ],
)
def test_what_is_no_thought(text: Any, says: str) -> None:
    with pytest.raises(Flaw) as caught:
        parse_thought({"pred": text})
    assert says in str(caught.value)


def test_a_choice_is_taken_apart() -> None:
    thoughts = ["First, 1.\n\nReason enough: 2.", "ends with a line\n", "Here are the reasoning paths:"]
    row = parse_choice(published_choice("A problem?\n\nWith two parts.", thoughts, [2, 1]))
    assert row == Choice("A problem?\n\nWith two parts.", tuple(thoughts), (1, 0))


def test_the_last_number_says_that_none_is_right() -> None:
    assert parse_choice(published_choice("P?", ["a", "b", "c", "d", "e"], [6])).right == ()


@pytest.mark.parametrize(
    ("label", "says"),
    [
        ([], "`label` is []; expected a list of the numbers of all right options, at least one"),
        (2, "`label` is 2; expected a list"),
        ([0], "`label` has 0; expected numbers from 1 to 3, of which 3 says that all are wrong"),
        ([4], "`label` has 4"),
        (["1"], "`label` has '1'"),
        ([True], "`label` has True"),
        ([1, 1], "`label` is [1, 1], which has a number twice"),
        ([1, 3], "`label` is [1, 3], and 3 says that all of them are wrong"),
    ],
)
def test_labels_that_mean_nothing(label: Any, says: str) -> None:
    with pytest.raises(Flaw) as caught:
        parse_choice(published_choice("P?", ["a", "b"], label))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("I will provide", "I would provide"), "`input` is not a choice in the published wording: it begins 'I would provide"),
        (("Number of the best reasoning path: ", ""), "`input` is not a choice in the published wording"),
        (("Reason 2: ", "Reason two: "), "`input` lists 0 thoughts and then neither 'Reason 1: ' nor the option that rejects all"),
        (("Reason 1: a\n\nReason 2: b\n\nReason 3", "Reason 1"), "`input` lists no thoughts"),
    ],
)
def test_other_wordings_are_not_taken_for_published_ones(change: tuple[str, str], says: str) -> None:
    record = published_choice("P?", ["a", "b"], [1])
    record["input"] = record["input"].replace(*change)
    with pytest.raises(Flaw) as caught:
        parse_choice(record)
    assert says in str(caught.value)
