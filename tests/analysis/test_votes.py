"""The majority vote against values worked out by hand, and against a comparison of every answer with every other."""

import time
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.analysis.quality.votes import MAX_COMPARED, Same, Sample, majority
from pipeline.grading.answers import same_answer
from tests.support.grading_pairs import at_once


def never(a: str, b: str) -> bool:
    raise AssertionError(f"nobody needed to know whether {a} is {b}")


def samples(*said: str | None) -> list[Sample]:
    """A sample for each answer; `5` is right, `5.0` too."""
    return [Sample(answer in ("5", "5.0"), answer) for answer in said]


@pytest.mark.parametrize(
    ("said", "share"),
    [
        (("5", "5.0", "7"), 1.0),
        (("7", "5", "7"), 0.0),
        (("5", "7"), 1.0),
        (("7", "5"), 0.0),
        (("7", "5", "8", "5.0"), 1.0),
        (("1/2", "5", "0.5", "5", "5"), 1.0),
        (("1/2", "5", "0.5", "5"), 0.0),
        ((None, None, "5"), 1.0),
        ((None, "7"), 0.0),
        ((None,), 0.0),
    ],
)
def test_the_most_frequent_answer_and_of_a_tie_the_first(said: tuple[str | None, ...], share: float) -> None:
    assert majority([samples(*said)], lambda a, b: False) == share


def test_the_grader_is_asked_only_where_it_matters() -> None:
    assert majority([samples("5", "5", "a", "b"[:1], "5"), samples("a", "b"), samples("5"), samples("a", "a", "5")], never) == 0.5
    asked = []

    def same(a: str, b: str) -> bool:
        asked.append((a, b))
        return {a, b} == {r"\sqrt8", r"2\sqrt2"}

    assert majority([samples("5", r"\sqrt8", r"2\sqrt2")], same) == 0.0
    assert asked == [(r"2\sqrt2", r"\sqrt8")]


def test_no_problems_no_majority() -> None:
    assert majority([], never) is None


def compared_with_every_other(voters: Sequence[Sample], same: Same) -> list[tuple[int, int]]:
    """Each wrong answer joins the first group whose first answer is the same: for each group its size and negative first place."""
    groups: list[tuple[str, list[int]]] = []
    for place, voter in enumerate(voters):
        if voter.correct or voter.answer is None:
            continue
        answer = voter.answer
        own = next((places for known, places in groups if same_answer(answer, known) or same(answer, known)), None)
        if own is None:
            groups.append((answer, [place]))
        else:
            own.append(place)
    return [(len(places), -places[0]) for _, places in groups]


def right_by_definition(given_: Sequence[Sample], same: Same) -> bool:
    voters = [sample for sample in given_ if sample.answer is not None]
    right = [place for place, sample in enumerate(voters) if sample.correct]
    return bool(right) and (len(right), -right[0]) > max(compared_with_every_other(voters, same), default=(0, 0))


def quick(a: str, b: str) -> bool:
    return at_once("math", a, b) is True or {a, b} == {r"\sqrt8", r"2\sqrt2"}


WRONG = [
    "7",
    "7.0",
    "14/2",
    "50",
    "50%",
    "0.5",
    "1/2",
    r"50\%",
    "(B)",
    "B",
    r"\sqrt8",
    r"2\sqrt2",
    "",
    " ",
    "$",
    "x",
    "x ",
    "1,000",
    "1000",
]
answers = st.one_of(
    st.just(Sample(True, "5")),
    st.none().map(lambda none: Sample(False, none)),
    st.sampled_from(WRONG).map(lambda text: Sample(False, text)),
)


@given(st.lists(answers, max_size=24))
@example([Sample(False, "0.5"), Sample(False, "50"), *[Sample(True, "5")] * 3, Sample(False, "50"), Sample(False, "50%")])
def test_grouping_by_form_changes_no_vote(given_: list[Sample]) -> None:
    assert majority([given_], quick) == right_by_definition(given_, quick)


def test_many_wrong_answers_take_little_time() -> None:
    """And the rare ones are not compared with each other, which could make a vote of three of them."""
    many = [Sample(False, f"{place}x") for place in range(10_000)] + [Sample(True, "5")] * 2
    asked = []

    def same(a: str, b: str) -> bool:
        asked.append((a, b))
        return False

    began = time.process_time()
    assert majority([many], same) == 1.0
    assert time.process_time() - began < 2.0
    assert len(asked) == MAX_COMPARED * (MAX_COMPARED - 1) // 2
