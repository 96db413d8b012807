"""A column of messages: the last of the user is the problem, what stands before stays as it is."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.chat import chat_of
from pipeline.data.problems import Problem, open_problems
from pipeline.data.rows import Flaw
from pipeline.drawing.prompt import problem_in, shown_prompt
from pipeline.graph.prompts import DEFAULT_PROMPTS, Message
from pipeline.session.options import RunOptions
from pipeline.session.prepare import load_plan
from pipeline.session.run import run
from pipeline.store.kept_problems import kept_problems
from pipeline.store.run_file import RunFile
from tests.support.paths import ROOT, SIM

SYSTEM, ONE, TWO = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"})
ASKED = {"role": "user", "content": "2+2?"}


def said(*messages: dict[str, str]) -> tuple[Message, ...]:
    return tuple(Message(each["role"], each["content"]) for each in messages)


@pytest.mark.parametrize("name", ["p.jsonl", "p.parquet"])
def test_a_nested_column_of_messages(tmp_path: Path, name: str) -> None:
    rows = [
        {"body": {"messages": [SYSTEM, ONE, TWO, ASKED]}, "gold": {"parts": [4, 5]}},
        {"body": {"messages": [ASKED]}, "gold": {"parts": [4]}},
    ]
    if name == "p.parquet":
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    else:
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems = open_problems(tmp_path / name, {"problem": "body.messages", "answer": "gold.parts[0]"})
    assert problems.check().bad_rows == 0
    first, second = problems.unchanged()
    assert first == Problem(1, "1", "2+2?", "4", history=said(SYSTEM, ONE, TWO))
    assert second == Problem(2, "2", "2+2?", "4")
    assert isinstance(first, Problem)
    assert first.told(DEFAULT_PROMPTS) == "system: Be brief.\n\nuser: 1+1?\n\nassistant: 2\n\nuser: 2+2?"


@pytest.mark.parametrize(
    ("value", "chat"),
    [
        ("text", None),
        (["a"], None),
        ([], None),
        (json.dumps([ONE]), said(ONE)),
        ([{"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]}], said(ONE)),
        ([{"role": "developer", "content": "Be brief."}, ONE], said(SYSTEM, ONE)),
    ],
)
def test_messages_in_every_form(value: Any, chat: tuple[Message, ...] | None) -> None:
    assert chat_of("m", value) == chat


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ([ONE, TWO], "`m` ends with an assistant message; end the chat with the user's, or map it: --column problem='m[0].content'"),
        ([SYSTEM], "`m` has messages by system; expected"),
        ([ONE, ONE], "`m` has messages by user, user; expected"),
        ([ONE, SYSTEM, ONE], "`m` has messages by user, system, user; expected"),
        ([{"role": "tool", "content": "x"}, ONE], "`m` has messages by tool, user; expected"),
        ([{"role": "user", "content": ""}], "the `content` of `m[0]` is empty, expected text"),
        ([{"role": "user", "content": [{"type": "image"}]}], "the `content` of `m[0]` is an array, expected text"),
        ([ONE, TWO] * 40 + [ONE], "`m` has 81 messages, more than 64"),
    ],
)
def test_a_chat_that_ends_with_no_problem(value: Any, what: str) -> None:
    with pytest.raises(Flaw) as caught:
        chat_of("m", value)
    assert str(caught.value).startswith(what)


def test_a_run_asks_after_the_chat_and_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"messages": [SYSTEM, ONE, TWO, ASKED], "answer": "4"}) + "\n")
    options = RunOptions(
        graph=ROOT / "graphs/target.yaml", engines=SIM, input=path, output=tmp_path / "run", columns={"problem": "messages"}
    )
    assert run(options).exit_code == 0
    kept = kept_problems(tmp_path / "run", RunFile.read(tmp_path / "run").input)
    assert kept is not None
    assert list(kept) == list(open_problems(path, {"problem": "messages"}))
    plan = load_plan(ROOT / "graphs/target.yaml", SIM)
    text = shown_prompt(plan, "target", "response", problem_in(kept, 1)).text
    assert text.startswith(f"<|user|>Be brief.<|user|>1+1?<|assistant|>2<|end|><|user|>{DEFAULT_PROMPTS.asked('2+2?')}<|assistant|>")
