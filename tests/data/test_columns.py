"""Which columns are read, what a value means as text, and a chat as a problem."""

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.columns import ALIASES, Columns
from pipeline.data.problems import Problem
from pipeline.data.reading import InputReading, read_problems
from pipeline.drawing.prompt import problem_in, shown_prompt
from pipeline.errors import BadRow, InputError
from pipeline.graph.prompts import DEFAULT_PROMPTS, Message
from pipeline.options import RunOptions
from pipeline.run.prepare import load_plan
from pipeline.run.run import run
from pipeline.store.kept_problems import solved_problems
from pipeline.store.run_file import RunFile
from tests.support.paths import ROOT, SIM

SYSTEM, ONE, TWO = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"})
ASKED = {"role": "user", "content": "2+2?"}


def read(row: dict[str, Any], columns: dict[str, str] | None = None) -> Problem | BadRow:
    return Columns(columns or {}, [row], "p.jsonl").problem(1, row)


def said(*messages: dict[str, str]) -> tuple[Message, ...]:
    return tuple(Message(each["role"], each["content"]) for each in messages)


@pytest.mark.parametrize("problem", ["problem", *ALIASES["problem"], "Question"])
@pytest.mark.parametrize("answer", ["answer", *ALIASES["answer"], "Solution"])
def test_the_names_that_data_sets_use(problem: str, answer: str) -> None:
    row = {"id": 7, answer: "4", problem: "2+2?"}
    columns = Columns({}, [row], "p.csv")
    assert columns.problem(1, row) == Problem(1, "1", "2+2?", "4")
    taken = [f"`{theirs}` as `{ours}`" for ours, theirs in (("problem", problem), ("answer", answer)) if ours != theirs]
    assert columns.remark == (f"p.csv: read {', '.join(taken)}" if taken else "")


def test_our_names_go_before_others_and_a_mapping_before_both() -> None:
    row = {"question": "a", "problem": "b", "prompt": "c", "answer": 1, "target": 2, "nr": 5}
    assert read(row) == Problem(1, "1", "b", "1")
    assert read(row, {"problem": "prompt", "answer": "target", "problem_id": "nr"}) == Problem(1, "5", "c", "2")


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({}, "p.jsonl: no column `problem`; it has `text`, `nr`; pass --column problem=NAME; --column answer=NAME as well"),
        ({"problem": "txet"}, "p.jsonl: no column `txet`; it has `text`, `nr`; did you mean `text`?"),
        ({"problem": "text", "problem_id": "zzz"}, "p.jsonl: no column `zzz`; it has `text`, `nr`"),
        ({"anwser": "nr"}, "--column anwser=nr: a problem has no field `anwser`; did you mean `answer`?"),
        ({"text": "problem"}, "--column text=problem: a problem has no field `text`; did you mean --column problem='text'?"),
    ],
)
def test_a_missing_column_is_named(columns: dict[str, str], what: str) -> None:
    with pytest.raises(InputError) as caught:
        list(InputReading("p.jsonl", [{"text": "x", "nr": 1}], columns))
    assert str(caught.value).startswith(what)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (27.0, "27"),
        (0.5, "0.5"),
        (10**30, str(10**30)),
        (1e22, "1" + 22 * "0"),
        (1e-7, "0.0000001"),
        (-0.0, "0"),
        (True, "true"),
        (None, None),
        (float("nan"), None),
        (" ", None),
        ([1, "x"], "1, x"),
        (Decimal("27.00"), "27"),
        (Decimal("0.50"), "0.50"),
        (date(2024, 1, 2), "2024-01-02"),
        ("We get 3*6 = <<3*6=18>>18\n#### 18", "18"),
    ],
)
def test_answers_become_text(value: Any, text: str | None) -> None:
    assert read({"problem": "x", "answer": value}) == Problem(1, "1", "x", text)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"problem": None}, "has no `problem`"),
        ({"problem": " \n"}, "`problem` is empty"),
        ({"problem": 5}, "`problem` is a number, expected text or the messages of a chat"),
        ({"problem": "x", "answer": {}}, "`answer` is an object, expected text or a number"),
        ({"problem": "x", "answer": b"\xff"}, "`answer` is binary, expected text or a number"),
        ({"problem": "x", "answer": float("inf")}, "`answer` is a number that is out of range; write it as text"),
        ({"problem": "x", "grader": "mathh"}, "`grader` is 'mathh', expected math, "),
        ({"problem": "x" * 1_000_001}, "`problem` has 1,000,001 characters, more than 1,000,000"),
        ({"problem": "x", "answer": "x" * 100_001}, "`answer` has 100,001 characters, more than 100,000"),
        ({"problem": "x", "problem_id": "x" * 1001}, "`problem_id` has 1,001 characters, more than 1,000"),
        ({"problem": [ONE, TWO]}, "`problem` ends with an assistant message; end the chat with the user's, or map it"),
        ({"problem": [ONE, ONE]}, "`problem` has messages by user, user; expected an optional system message"),
        ({"problem": [{"role": "tool", "content": "x"}, ONE]}, "`problem[0].role` is 'tool'; expected system"),
        ({"problem": [{"role": "user", "content": [{"type": "image"}]}]}, "`problem[0].content` is no text"),
        ({"problem": [ONE, TWO] * 40 + [ONE]}, "`problem` has 81 messages, more than 64"),
    ],
)
def test_a_row_without_a_problem_says_why(row: dict[str, Any], what: str) -> None:
    found = read(row)
    assert isinstance(found, BadRow)
    assert found.what.startswith(what)


def test_paths_lead_into_rows() -> None:
    row = {"body": {"messages": [SYSTEM, ASKED]}, "gold": {"parts": [4, 5]}, "a.b": "plain"}
    assert read(row, {"problem": "body.messages", "answer": "gold.parts[1]"}) == Problem(1, "1", "2+2?", "5", history=said(SYSTEM))
    assert read(row, {"problem": "a.b"}) == Problem(1, "1", "plain", None)
    assert "the array holds 2 values" in str(read(row, {"problem": "gold.parts[2]"}))
    assert "has no `body.mesages`; did you mean `messages`?" in str(read(row, {"problem": "body.mesages"}))
    assert "expected an array around `0`, got an object" in str(read(row, {"problem": "gold[0]"}))
    columns = Columns({"problem": "a.b", "answer": "gold.parts[0]"}, [row], "p")
    assert columns.problem(2, {"a.b": "no gold here", "gold": None}) == Problem(2, "2", "no gold here", None)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (json.dumps([ONE]), Problem(1, "1", "1+1?", None)),
        ("[{not a chat", Problem(1, "1", "[{not a chat", None)),
        ([{"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]}], Problem(1, "1", "1+1?", None)),
        ([{"role": "developer", "content": "Be brief."}, ONE], Problem(1, "1", "1+1?", None, history=said(SYSTEM))),
        ([SYSTEM, ONE, TWO, ASKED], Problem(1, "1", "2+2?", None, history=said(SYSTEM, ONE, TWO))),
    ],
)
def test_messages_in_every_form(value: Any, problem: Problem) -> None:
    assert read({"messages": value}) == problem


def test_a_chat_is_the_same_in_parquet_and_in_the_prompt_of_a_run_that_keeps_it(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist([{"messages": [SYSTEM, ONE, TWO, ASKED], "answer": "4"}]), tmp_path / "p.parquet")
    options = RunOptions(graph=ROOT / "graphs/target.yaml", engines=SIM, input=tmp_path / "p.parquet", output=tmp_path / "run")
    assert run(options).exit_code == 0
    kept = solved_problems(tmp_path / "run", RunFile.read(tmp_path / "run"))
    assert list(kept) == list(read_problems(tmp_path / "p.parquet"))
    problem = problem_in("p", iter(kept), 1)
    assert problem.told(DEFAULT_PROMPTS) == "system: Be brief.\n\nuser: 1+1?\n\nassistant: 2\n\nuser: 2+2?"
    text = shown_prompt(load_plan(ROOT / "graphs/target.yaml", SIM), "target", "response", problem).text
    assert text.startswith(f"<|user|>Be brief.<|user|>1+1?<|assistant|>2<|end|><|user|>{DEFAULT_PROMPTS.asked('2+2?')}<|assistant|>")
