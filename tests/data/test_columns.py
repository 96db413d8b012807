"""Which columns are read, a value as text, a chat as a problem, and multiple choice as data sets write it."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.data.columns import ALIASES, Columns, options_of
from pipeline.data.problems import Problem
from pipeline.data.reading import InputReading, read_problems
from pipeline.errors import BadRow, InputError
from pipeline.graph.prompts import DEFAULT_PROMPTS, LETTERS
from pipeline.options import RunOptions
from pipeline.run.prepare import load_plan
from pipeline.run.run import run
from pipeline.show.prompt import problem_in, shown_prompt
from pipeline.store.kept_problems import solved_problems
from pipeline.store.run_file import RunFile
from tests.support.paths import ROOT, SIM

SYSTEM, ONE, TWO = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"})
ASKED = {"role": "user", "content": "2+2?"}
WX = ["w", "x", "y", "z"]


def read(row: dict[str, Any], columns: dict[str, str] | None = None) -> Problem | BadRow:
    return Columns(columns or {}, [row], "p.jsonl").problem(1, row)


@pytest.mark.parametrize("problem", ["problem", *ALIASES["problem"], "Question"])
@pytest.mark.parametrize("answer", ["answer", *ALIASES["answer"], "Solution"])
def test_the_names_that_data_sets_use(problem: str, answer: str) -> None:
    row = {"id": 7, answer: "4", problem: "2+2?"}
    columns = Columns({}, [row], "p.csv")
    assert columns.problem(1, row) == Problem(1, "1", "2+2?", "4")
    taken = [f"`{theirs}` as `{ours}`" for ours, theirs in (("problem", problem), ("answer", answer)) if ours != theirs]
    assert columns.remark == (f"p.csv: read {', '.join(taken)}" if taken else "")


def test_our_names_go_before_others_and_a_mapping_before_all() -> None:
    row = {"question": "a", "problem": "b", "prompt": "c", "answer": 1, "target": 2, "nr": 5}
    assert read({"": 0} | row) == Problem(1, "1", "b", "1")
    assert read(row, {"problem": "prompt", "answer": "target", "problem_id": "nr"}) == Problem(1, "5", "c", "2")


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({}, "p.jsonl: no column `problem`; pass --column problem=NAME, one of `text`, `nr`"),
        ({"problem": "txet"}, "p.jsonl: no column `txet`; did you mean `text`?"),
        ({"anwser": "nr"}, "--column anwser=nr: a problem has no field `anwser`; did you mean `answer`?"),
    ],
)
def test_a_missing_column_is_named(columns: dict[str, str], what: str) -> None:
    with pytest.raises(InputError) as caught:
        list(InputReading("p.jsonl", [{"text": "x", "nr": 1}], columns))
    assert str(caught.value) == what


def test_answers_become_text() -> None:
    values = {27.0: "27", 0.5: "0.5", 1e22: "1" + 22 * "0", 1e-7: "0.0000001", True: "true", None: None, float("nan"): None}
    values |= {" ": None, Decimal("0.70"): "0.70", "We get <<3*6=18>>18\n#### 18": "18"}
    for value, text in (*values.items(), ([1, "x"], "1, x")):
        assert read({"problem": "x", "answer": value}) == Problem(1, "1", "x", text)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"problem": " \n"}, "has no `problem`"),
        ({"problem": 5}, "`problem` is neither text nor the messages of a chat"),
        ({"answer": {}}, "`answer` is of type `dict`, expected text or a number"),
        ({"grader": "mathh"}, "`grader` is 'mathh'; did you mean `math`?"),
        ({"problem": [ONE, TWO]}, "`problem` has messages by user, assistant; expected an optional system message"),
        ({"options": "(A) a (B) b"}, "`options` is text but not JSON"),
        ({"options": 5}, "`options` is no array of options"),
        ({"options": [["a"], ["b"]]}, "`options` is of type `list`"),
        ({"options": ["a", ""]}, "`options` has 2 texts, expected at most 26, none of them empty"),
        ({"options": {"text": ["w", "x"], "label": ["A", "A"]}}, "`options` has 2 texts and the labels A, A"),
        ({"options": WX, "answer": "green"}, "`answer` is 'green': which is not one of its 4 options"),
        ({"options": WX, "answer": "E"}, "`answer` is 'E': which is not one of its 4 options"),
        ({"options": ["B", "A"], "answer": "A"}, "`answer` is 'A': several options match; write the letter"),
        ({"options": WX, "answer": 2}, "`answer` is '2': which is not one of its 4 options; write the letter"),
    ],
)
def test_a_row_without_a_problem_says_why(row: dict[str, Any], what: str) -> None:
    found = read({"problem": "x"} | row)
    assert isinstance(found, BadRow)
    assert found.what.startswith(what)


def test_a_chat_is_the_same_in_parquet_and_in_the_prompts_of_both_engines(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"messages": [SYSTEM, ONE, TWO, ASKED], "answer": "4"}]), tmp_path / "p.parquet")
    options = RunOptions(graph=ROOT / "graphs/target.yaml", engines=SIM, input=(str(tmp_path / "p.parquet"),), output=tmp_path / "run")
    assert run(options).exit_code == 0
    kept = solved_problems(tmp_path / "run", RunFile.read(tmp_path / "run"))
    assert list(kept) == list(read_problems(tmp_path / "p.parquet"))
    problem = problem_in("p", iter(kept), 1)
    assert problem.told(DEFAULT_PROMPTS) == "system: Be brief.\n\nuser: 1+1?\n\nassistant: 2\n\nuser: 2+2?"
    plan = load_plan(ROOT / "graphs/speccot.yaml", SIM)
    begin = f"<|user|>Be brief.<|user|>1+1?<|assistant|>2<|end|><|user|>{DEFAULT_PROMPTS.asked('2+2?')}<|assistant|>"
    shown = [shown_prompt(plan, "speccot", node.name, problem) for node in plan.stages()]
    assert {each.role for each in shown if each.text.startswith(begin)} == {"draft", "target"}


def test_options_in_every_form() -> None:
    arc, medqa = {"text": ["w", "x"], "label": ["1", "2"]}, {"A": "w", "B": "x", "C": None}  # as Arrow gives the letters of the longest
    for value in (["w", "x"], arc, medqa, '["w", "x"]'):
        assert options_of("options", value).texts == ("w", "x")
    assert [options_of("options", value).labels for value in (arc, medqa)] == [("1", "2"), ("A", "B")]
    assert not any(options_of("options", value).texts for value in (None, "", [], {}))


@pytest.mark.parametrize(
    ("options", "answers"),
    [
        (WX, ["C", "c", "(C)", "C.", "**C**", "y", " Y ", ["C"]]),
        ({"text": WX, "label": ["1", "2", "3", "4"]}, ["3", 3]),
        ({"text": WX, "label": ["E", "F", "G", "H"]}, ["G", "y"]),
        (["0.5", "2", "1.5"], [1.5]),
        (["no", "False", "True"], [True]),
    ],
)
def test_an_answer_becomes_a_letter(options: Any, answers: list[Any]) -> None:
    rows = [{"problem": "Which?", "options": options, "answer": answer} for answer in answers]
    assert [item.answer for item in map(read, rows) if isinstance(item, Problem)] == ["C"] * len(answers)


@given(st.lists(st.integers(1, 25), min_size=1, max_size=8), st.sampled_from([0, 1]), st.booleans(), st.data())
def test_numbers_are_positions_only_where_one_is_0(sizes: list[int], base: int, as_text: bool, data: st.DataObject) -> None:
    """Against the definition: numbers from 1 are never taken for positions, whatever the other rows are."""
    options = [["no number"] * size + ["none"] for size in sizes]
    places = [data.draw(st.integers(0, size)) for size in sizes]
    rows: list[dict[str, Any]] = [
        {"problem": "Which?", "options": each, "answer": str(place + base) if as_text else place + base}
        for each, place in zip(options, places, strict=True)
    ]
    columns = Columns({}, rows, "p")
    found = [columns.problem(1, row) for row in rows]
    if base == 0 and 0 in places:
        assert [item.answer for item in found if isinstance(item, Problem)] == [LETTERS[place] for place in places]
    else:
        assert all(isinstance(item, BadRow) and item.what.endswith("; write the letter") for item in found)


ARC = [{"choices": {"text": WX, "label": list("ABCD")}, "answerKey": each} for each in "ABCD"]
SETS: dict[str, tuple[dict[str, str], list[dict[str, Any]], str]] = {
    "mmlu": ({}, [{"choices": WX, "answer": place} for place in range(4)], "positions counted from 0"),
    "by value": ({}, [{"choices": [0, 1, 2, 3], "answer": place} for place in range(4)], "`choices` as `options`"),
    "arc": ({}, ARC, "`answerKey` as `answer`"),
    "hellaswag": ({"options": "endings", "answer": "label"}, [{"endings": WX, "label": str(n)} for n in range(4)], "from 0"),
    "mmlu-pro": ({}, [{"options": WX, "answer": "ABCD"[place], "answer_index": place} for place in range(4)], ""),
}


@pytest.mark.parametrize("name", SETS)
def test_data_sets_as_they_are_published(name: str) -> None:
    mapped, rows, remark = SETS[name]
    asked = [{"question": f"q{place}"} | row for place, row in enumerate(rows)]
    columns = Columns(mapped, asked, name)
    items = [item for row in asked if isinstance(item := columns.problem(1, row), Problem)]
    assert ("".join(item.answer or "-" for item in items), {len(item.options) for item in items}) == ("ABCD", {4})
    assert remark in columns.remark
