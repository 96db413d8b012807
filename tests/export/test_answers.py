"""The answers of a run, one row for each problem of the input with its own columns, and files of such rows: whole, or not there."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.export import answers_file
from pipeline.export.answers import Answers
from pipeline.export.answers_file import write_rows
from pipeline.store.rows import ChainRow, StepRow
from pipeline.store.store import RunStore, read_batches
from tests.support.killed import cut
from tests.support.rows import blank
from tests.support.runs import rows, solve, write_problems

COLUMNS = {name: pa.string() for name in ("problem_id", "problem", "answer")}
COLUMNS |= {"correct": pa.bool_(), "level": pa.int64(), "votes": pa.string(), "score": pa.float64()}
ROWS: list[dict[str, Any]] = [
    {"problem_id": "p0", "problem": 'Two lines\nand a "quote", and a comma', "answer": "=1+1", "correct": True, "level": 3},
    {"problem_id": "p1", "problem": "2 < 3?", "answer": None, "correct": None, "votes": {"7": 2, "8": 1}, "score": 0.5},
    {"problem_id": "p2", "level": 2**53 + 1, "votes": [1, None]},
]


@pytest.mark.slow
def test_a_row_for_each_problem_in_the_order_of_the_input(tmp_path: Path) -> None:
    folder = solve(tmp_path, input=write_problems(tmp_path, 12, (b'{"problem_id": "empty", "level": "hard"}',))).folder
    *answered, bad = Answers(folder).rows()
    chains = {chain["problem_id"]: chain for chain in rows(folder, "chains")}
    assert [(row["problem_id"], row["problem"]) for row in answered] == [(f"p{i}", f"Problem number {i}?") for i in range(12)]
    for row in answered:
        chain = chains[row["problem_id"]]
        assert (row["answer"], row["correct"], row["status"], row["error"]) == (chain["answer"], chain["correct"], "done", None)
    assert (bad["problem_id"], bad["status"], bad["answer"], bad["level"]) == ("(row 13)", "failed", None, "hard")
    assert bad["error"].startswith("BadRow: ")


@pytest.mark.slow
def test_columns_that_are_called_like_ours_are_renamed(tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_bytes(msgspec.json.encode({"question": "1+1?", "answer": "x", "status": "old", "gold": "2", "level": 5}) + b"\n")
    folder = solve(tmp_path, input=problems, columns={"problem": "question", "answer": "gold"}).folder
    [row] = Answers(folder).rows()
    own = {"input_answer": "x", "input_status": "old", "gold": "2", "level": 5}
    assert (row["problem"], row["reference_answer"], {name: row[name] for name in own}) == ("1+1?", "2", own)
    assert list(Answers(folder, thoughts=True).columns()) == [*list(row)[:7], "thought", *own]
    assert "question" not in row


@pytest.mark.slow
def test_a_column_has_the_type_that_its_values_have_in_common(tmp_path: Path) -> None:
    kinds: dict[str, list[list[Any]]] = {
        "int64": [[1, None], [2**53 + 1, 1]],
        "double": [[1, 2.5]],
        "string": [[1, "x"], [2**63, 1], [2**53 + 1, 0.5], [True, 1], [None, None], [[1], [2]]],
    }
    columns = {f"{kind} {place}": values for kind, found in kinds.items() for place, values in enumerate(found)}
    lines = [{"problem": f"{row}?"} | {name: values[row] for name, values in columns.items()} for row in range(2)]
    (problems := tmp_path / "problems.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    answers = Answers(solve(tmp_path, input=problems).folder)
    found = {name: str(kind) for name, kind in answers.columns().items() if name in columns}
    assert found == {name: name.split()[0] for name in columns}
    assert write_rows(tmp_path / "answers.csv", answers.columns(), answers.rows()) == 2


@pytest.mark.slow
def test_the_answer_with_most_votes_is_the_answer_and_has_its_thought(tmp_path: Path) -> None:
    """One problem of a run after the other has its answers replaced by these, which are right or wrong."""
    expected: dict[tuple[tuple[str | None, bool], ...], tuple[str | None, bool, int, dict[str, int]]] = {
        (("7", True), ("8", False), ("7.0", True)): ("7", True, 0, {"7": 2, "8": 1}),
        (("1/2", False), ("7", True), ("0.5", False)): ("1/2", False, 0, {"1/2": 2, "7": 1}),
        ((None, False), ("7", True), (None, False)): ("7", True, 1, {"7": 1}),
        (("8", False), ("7", True), (None, False)): ("8", False, 0, {"8": 1, "7": 1}),
        ((None, False), (None, False), (None, False)): (None, False, 0, {}),
    }
    folder = solve(tmp_path, input=write_problems(tmp_path, len(expected)), samples=3).folder
    for table in ("chains", "steps"):
        for part in (folder / table).iterdir():
            part.unlink()
    store = RunStore(folder)
    for row, answers in enumerate(expected, 1):
        for i, (text, right) in enumerate(answers):
            said = {"answer": text, "correct": right, "stop_reason": "answer"}
            name, place = f"c{row}.{i}", {"problem_id": f"p{row - 1}", "input_row": row, "sample_index": i}
            store.append("chains", [blank(ChainRow, chain_id=name, **place, **said)])
            store.append("steps", [blank(StepRow, chain_id=name, step_text=f"thought {i}")])
    store.close()
    found = Answers(folder, thoughts=True).rows()
    assert [(row["answer"], row["correct"], int(row["thought"][-1]), row["votes"]) for row in found] == [*expected.values()]


@pytest.mark.slow
def test_of_a_run_that_is_not_finished(tmp_path: Path) -> None:
    whole = solve(tmp_path).folder
    cut(whole, part := tmp_path / "part", 0.5)
    over = {row["problem_id"] for batch in read_batches(part, "chains", ["problem_id"]) for row in batch.to_pylist()}
    states = {row["problem_id"]: row["status"] for row in Answers(part).rows()}
    assert {name for name, state in states.items() if state == "done"} == over
    assert set(states.values()) == {"done", "unfinished"}


def test_what_is_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_file, "AT_ONCE", 2)
    for name in ("a.jsonl", "a.csv", "a.parquet"):
        assert write_rows(tmp_path / name, COLUMNS, iter(ROWS)) == len(ROWS)
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").read_bytes().splitlines()] == ROWS
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        first, second, third = csv.DictReader(file)
    assert first == dict(zip(COLUMNS, ("p0", ROWS[0]["problem"], "=1+1", "true", "3", "", ""), strict=True))
    assert (second["votes"], second["score"], second["answer"]) == ('{"7":2,"8":1}', "0.5", "")
    assert third["level"] == "9007199254740993"
    table = pq.read_table(tmp_path / "a.parquet")
    assert {field.name: field.type for field in table.schema} == COLUMNS
    texts = {"votes": [None, '{"7":2,"8":1}', "[1,null]"]}
    assert table.to_pydict() == {name: [row.get(name) for row in ROWS] for name in COLUMNS} | texts


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield ROWS[0]
        raise ValueError("the second row")

    for name in ("a.jsonl", "a.csv", "a.parquet"):
        with pytest.raises(ValueError, match="the second row"):
            write_rows(tmp_path / name, COLUMNS, broken())
    assert list(tmp_path.iterdir()) == []
