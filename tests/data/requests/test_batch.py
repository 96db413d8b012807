"""A file of the OpenAI batch API as input: told by its lines, each a problem with the settings of its chains, or a row that is refused."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.data.many_files import open_files
from pipeline.data.part import RowSet, Shard
from pipeline.data.problems import Fingerprint, Problem, open_problems
from pipeline.data.requests.batch import refusal_of
from pipeline.data.requests.chat import ChainSettings
from pipeline.drawing.prompt import problem_in, shown_prompt
from pipeline.errors import BadRow, InputError
from pipeline.graph.prompts import DEFAULT_PROMPTS, Message
from pipeline.session.prepare import load_plan
from tests.support.paths import ROOT, SIM
from tests.support.requests import REFUSED, request, write_batch

LINES = [
    request("a", n=3, seed=7),
    request("b", messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}], temperature=0),
    request("c", answer="4"),
]


@pytest.mark.parametrize("name", ["batch.jsonl", "batch.jsonl.gz", "batch.json", "batch.parquet"])
def test_a_batch_is_told_by_its_lines(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist([{"answer": None, **line} for line in LINES]), path)
    elif name == "batch.json":
        path.write_text(json.dumps(LINES))
    else:
        write_batch(path, LINES)
        if name.endswith(".gz"):
            path.write_bytes(gzip.compress(path.read_bytes()))
    problems = open_problems(path)
    found = problems.check()
    assert found == Fingerprint(found.sha256, 3, 0, own_rows=1, own_samples=3, own_most=3)
    assert (found.chains(1), found.chains(2)) == (5, 7)
    assert problems.remarks == (f"{path}: its rows are requests of an OpenAI batch",)
    assert list(problems.unchanged()) == [
        Problem(1, "a", "2+2?", None, settings=ChainSettings(samples=3, seed=7)),
        Problem(2, "b", "1+1?", None, history=(Message("system", "Be brief."),), settings=ChainSettings(temperature=0.0)),
        Problem(3, "c", "2+2?", "4"),
    ]


def test_a_mapped_problem_is_read_as_it_is_mapped(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "batch.jsonl", LINES)
    first = next(iter(open_problems(path, {"problem": "body.messages", "problem_id": "custom_id"})))
    assert first == Problem(1, "a", "2+2?", None)


def test_lines_that_are_refused_stop_nothing(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "batch.jsonl", [request("first"), *(line for line, *_ in REFUSED)])
    problems = open_problems(path)
    found = problems.check()
    assert (found.rows, found.bad_rows) == (len(REFUSED) + 1, len(REFUSED))
    first, *refused = problems.unchanged()
    assert first == Problem(1, "first", "2+2?", None)
    assert all(isinstance(each, BadRow) for each in refused)
    doubled = next(place for place, (_, name, *_) in enumerate(REFUSED) if name == "first")
    names = [name if place != doubled else f"(row {doubled + 2})" for place, (_, name, *_) in enumerate(REFUSED)]
    assert [each.problem_id for each in refused] == names
    assert isinstance(refused[doubled], BadRow)
    assert refused[doubled].what == "`custom_id` 'first' is taken by row 1 already"


def test_a_line_with_little_more_than_a_name_is_told_what_it_lacks() -> None:
    lacking = refusal_of({"custom_id": "a", "method": "POST"}, "has no `problem`")
    assert (lacking.message, lacking.code) == ("the line has no `url`", "missing_required_parameter")
    assert refusal_of({"custom_id": "a", "problem": ""}, "`problem` is empty").message == "`problem` is empty"


def test_a_batch_of_refused_lines_alone_is_a_batch(tmp_path: Path) -> None:
    path = write_batch(tmp_path / "batch.jsonl", [request("a", n=0), request("a"), request("a", tools=[1])])
    found = open_problems(path).check()
    assert (found.rows, found.bad_rows) == (3, 3)


def test_of_doubled_names_only_the_first_row_counts_in_any_file_and_shard(tmp_path: Path) -> None:
    one = write_batch(tmp_path / "one.jsonl", [request(f"p{k}") for k in range(20)])
    two = write_batch(tmp_path / "two.jsonl", [request(f"p{k}") for k in range(10, 30)])
    whole = open_files([one, two])
    assert whole.check().bad_rows == 10
    parts = []
    for index in range(3):
        part = open_files([one, two], part=RowSet(shard=Shard(index, 3)))
        part.check()
        parts += list(part.unchanged())
    assert sorted(each.row for each in parts) == list(range(1, 41))
    assert {each.row for each in parts if isinstance(each, BadRow)} == set(range(21, 31))


@pytest.mark.parametrize("lines", [[{"question": "2+2?"}], [{"custom_id": "a", "url": "x"}]])
def test_other_files_without_problems_are_refused_as_before(tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    with pytest.raises(InputError, match="no column `problem`"):
        open_problems(write_batch(tmp_path / "p.jsonl", lines)).check()


def test_the_chat_before_the_last_message_is_in_the_prompts_of_both_engines(tmp_path: Path) -> None:
    chat = [
        {"role": role, "content": said} for role, said in (("system", "Be brief."), ("user", "1+1?"), ("assistant", "2"), ("user", "2+2?"))
    ]
    asked = problem_in(open_problems(write_batch(tmp_path / "batch.jsonl", [request("a", messages=chat)])), 1)
    plan = load_plan(ROOT / "graphs/speccot.yaml", SIM)
    begin = f"<|user|>Be brief.<|user|>1+1?<|assistant|>2<|end|><|user|>{DEFAULT_PROMPTS.asked('2+2?')}<|assistant|>"
    shown = [shown_prompt(plan, "speccot", node.name, asked) for node in plan.stages()]
    assert {each.role for each in shown} == {"draft", "target"}
    assert [each.stage for each in shown if not each.text.startswith(begin)] == []
