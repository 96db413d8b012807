"""Multiple choice as data sets write it: options become lettered, answers letters, and what cannot be determined is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.columns import Columns, letter_of, options_of, shown_in
from pipeline.data.files import Flaw
from pipeline.data.problems import Problem
from pipeline.data.reading import read_files, read_problems
from pipeline.errors import BadRow
from pipeline.graph.prompts import LETTERS

WX = ("w", "x", "y", "z")


@pytest.mark.parametrize(
    ("value", "texts", "labels"),
    [
        (None, (), ()),
        ("", (), ()),
        ([], (), ()),
        (["a", 2, 0.5], ("a", "2", "0.5"), ()),
        ({"text": ["w", "x"], "label": ["1", "2"]}, ("w", "x"), ("1", "2")),  # ARC
        ({"text": ["w", "x"]}, ("w", "x"), ()),
        ({"A": "w", "B": "x", "C": None}, ("w", "x"), ("A", "B")),  # MedQA, as Arrow gives it
        ([{"label": "A", "text": "w"}, {"label": "B", "text": "x"}], ("w", "x"), ("A", "B")),
        (["A)21", "B)22"], ("21", "22"), ()),  # AQuA
        (["(A) 21", "(B) 22"], ("21", "22"), ()),
        (["A) 21", "C) 22"], ("A) 21", "C) 22"), ()),
        ('["w", "x"]', ("w", "x"), ()),
    ],
)
def test_options_in_every_form(value: Any, texts: tuple[str, ...], labels: tuple[str, ...]) -> None:
    assert options_of("options", value) == (texts, labels)


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("(A) a (B) b", "`o` is text without options"),
        ("['w', 'x']", "`o` is text but not JSON"),
        (5, "`o` is a number without options"),
        ([["a"], ["b"]], "`o` is an array without options"),
        (["a", ""], "option B of `o` is empty"),
        ([str(place) for place in range(27)], "`o` has 27 texts, more than the 26"),
        ({"text": ["w", "x"], "label": ["A"]}, "`o` has 2 texts and the labels A"),
        ({"text": ["w", "x"], "label": ["A", "A"]}, "`o` has 2 texts and the labels A, A"),
    ],
)
def test_what_are_no_options(value: Any, what: str) -> None:
    with pytest.raises(Flaw) as caught:
        options_of("o", value)
    assert str(caught.value).startswith(what)


@pytest.mark.parametrize(
    ("options", "answer", "letter"),
    [
        (WX, "C", "C"),
        (WX, "c", "C"),
        (WX, "(C)", "C"),
        (WX, "C.", "C"),
        (WX, "**C**", "C"),
        (WX, "C. y", "C"),
        (WX, "y", "C"),
        (WX, " Y ", "C"),
        (WX, ["C"], "C"),
        (WX, None, None),
        (WX, "", None),
        (("0.5", "1.5"), 1.5, "B"),
        (("True", "False"), True, "A"),
        ({"text": list(WX), "label": ["1", "2", "3", "4"]}, "3", "C"),
        ({"text": list(WX), "label": ["1", "2", "3", "4"]}, 3, "C"),
        ({"text": list(WX), "label": ["E", "F", "G", "H"]}, "G", "C"),
        ({"text": ["2", "1"], "label": ["1", "2"]}, "1", "A"),
    ],
)
def test_an_answer_becomes_a_letter(options: Any, answer: Any, letter: str | None) -> None:
    assert letter_of("a", answer, options_of("o", list(options) if isinstance(options, tuple) else options)) == letter


@pytest.mark.parametrize(
    ("options", "answer", "what"),
    [
        (WX, "green", "which is not one of its 4 options; expected a letter up to D"),
        (WX, "E", "which is not one of its 4 options"),
        (WX, "D. y", "which is not one of"),
        (("B", "A"), "A", "several options match; write the letter"),
        (("w", "w"), "w", "several options match"),
        (WX, ["A", "B"], "is an array, expected text or a number"),
        (WX, -1, "which is not one of"),
        (WX, 2, "it may be positions counted from 0, positions counted from 1, and the first rows do not tell; write the letter"),
        (WX, 7, "which is not one of"),
    ],
)
def test_an_answer_that_cannot_be_known_is_refused(options: tuple[str, ...], answer: Any, what: str) -> None:
    found = options_of("o", list(options))
    with pytest.raises(Flaw, match=what):
        letter_of("a", answer, found)


@given(st.lists(st.integers(1, 25), min_size=1, max_size=8), st.sampled_from([0, 1]), st.booleans(), st.data())
def test_numbers_are_places_only_where_the_column_says_from_where(sizes: list[int], base: int, as_text: bool, data: st.DataObject) -> None:
    """Against the definition: a column whose numbers can be read in one way alone is read so; otherwise a row is only where all agree."""
    options = [[f"option {place}" for place in range(size + 1)] for size in sizes]
    places = [data.draw(st.integers(0, size)) for size in sizes]
    rows: list[dict[str, Any]] = [
        {"problem": "Which?", "options": each, "answer": str(place + base) if as_text else place + base}
        for each, place in zip(options, places, strict=True)
    ]
    columns = Columns({}, rows, "p")
    known = any(int(row["answer"]) == (0 if base == 0 else len(row["options"])) for row in rows)
    for row, place in zip(rows, places, strict=True):
        found = columns.problem(1, row)
        assert found.answer == LETTERS[place] if isinstance(found, Problem) else not known and "the first rows do not tell" in found.what
        assert isinstance(found, Problem) == known


@pytest.mark.parametrize(
    ("problem", "shown"),
    [
        ("Which?\n(A) red\n(B) blue", True),
        ("Which? A. red B. blue", True),
        ("Which?\n**A**: red\n**B**: blue", True),
        ("Which of red and blue?", False),
        ("(A) red (C) blue", False),
        ("(B) blue (A) red", False),
    ],
)
def test_options_that_a_problem_shows(problem: str, shown: bool) -> None:
    assert shown_in(problem, ("red", "blue")) == shown


QUESTIONS = [f"q{place}" for place in range(4)]
SETS: dict[str, tuple[dict[str, str], list[dict[str, Any]], str, str]] = {
    "mmlu": ({}, [{"choices": WX, "answer": place} for place in range(4)], "ABCD", "positions counted from 0"),
    "from 1": ({}, [{"choices": WX, "answer": place + 1} for place in range(4)], "ABCD", "positions counted from 1"),
    "by value": ({}, [{"choices": [3, 4, 5, 6], "answer": place + 3} for place in range(4)], "ABCD", "the text of an option"),
    "arc": (
        {},
        [{"choices": {"text": WX, "label": list("ABCD")}, "answerKey": each} for each in "CADB"],
        "CADB",
        "`answerKey` as `answer`",
    ),
    "hellaswag": (
        {"options": "endings", "answer": "label"},
        [{"endings": WX, "label": str(place)} for place in range(4)],
        "ABCD",
        "from 0",
    ),
    "medmcqa": (
        {"options": "opa,opb,opc,opd", "answer": "cop"},
        [{"opa": "w", "opb": "x", "opc": "y", "opd": "z", "cop": place} for place in range(4)],
        "ABCD",
        "positions counted from 0",
    ),
    "mmlu-pro": ({}, [{"options": WX, "answer": "D", "answer_index": 3}] * 4, "DDDD", ""),
}


@pytest.mark.parametrize("name", SETS)
def test_data_sets_as_they_are_published(tmp_path: Path, name: str) -> None:
    columns, rows, letters, said = SETS[name]
    (tmp_path / "p.jsonl").write_text(
        "".join(json.dumps({"question": each} | row) + "\n" for each, row in zip(QUESTIONS, rows, strict=True))
    )
    reading = read_files([tmp_path / "p.jsonl"], columns)
    items = [item for item, _ in reading if isinstance(item, Problem)]
    assert ("".join(item.answer or "-" for item in items), {len(item.options) for item in items}) == (letters, {4})
    assert said in "\n".join(reading.remarks)


def test_gpqa_has_its_right_option_anywhere(tmp_path: Path) -> None:
    names = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
    rows = [{"Question": f"q{place}", **dict(zip(names, (f"r{place}", *"abc"), strict=True))} for place in range(60)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    items = [item for item in read_problems(tmp_path / "p.jsonl") if isinstance(item, Problem)]
    assert all(item.options[LETTERS.index(item.answer or "-")] == f"r{item.row - 1}" for item in items)
    assert {item.answer for item in items} == set("ABCD")


def test_a_row_whose_answer_is_no_option_fails_alone_and_one_that_shows_its_options_has_them_once(tmp_path: Path) -> None:
    rows = [
        {"problem": "Which?", "options": ["red", "blue"], "answer": "green"},
        {"problem": "Which? (A) red (B) blue", "options": ["red", "blue"], "answer": "blue"},
        {"problem": "1+1?", "options": ["1", "2"], "answer": "2", "grader": "math"},
        {"problem": "1+1?", "options": None, "answer": 1},
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, *others = read_problems(tmp_path / "p.jsonl")
    assert isinstance(first, BadRow)
    assert others == [
        Problem(2, "2", "Which? (A) red (B) blue", "B", (), "letter"),
        Problem(3, "3", "1+1?", "2", (), "math"),
        Problem(4, "4", "1+1?", "1"),
    ]
