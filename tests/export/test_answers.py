"""The answers of a run: one row for each problem of the input, in its order, with its own columns."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from pipeline.export.answers import Answers, _common, _kind
from pipeline.store.rows import ChainRow, StepRow
from pipeline.store.store import RunStore, read_batches
from tests.support.killed import cut
from tests.support.rows import blank
from tests.support.runs import solve, write_problems

pytestmark = pytest.mark.slow  # whole runs

BAD = (b'{"problem_id": "empty", "level": "hard"}',)


def answer_rows(folder: Path) -> list[dict[str, Any]]:
    return list(Answers(folder).rows())


def chains(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / "chains").to_pylist()
    return found


def test_a_row_for_each_problem_in_the_order_of_the_input(tmp_path: Path) -> None:
    folder = solve(tmp_path, input=write_problems(tmp_path, 12, BAD)).folder
    rows = answer_rows(folder)
    assert [row["problem_id"] for row in rows] == [f"p{i}" for i in range(12)] + ["(row 13)"]
    assert [row["problem"] for row in rows[:2]] == ["Problem number 0?", "Problem number 1?"]
    by_problem = {chain["problem_id"]: chain for chain in chains(folder)}
    for row in rows[:12]:
        chain = by_problem[row["problem_id"]]
        assert (row["answer"], row["correct"], row["status"], row["error"]) == (chain["answer"], chain["correct"], "done", None)
    assert (rows[12]["status"], rows[12]["answer"], rows[12]["level"]) == ("failed", None, "hard")
    assert rows[12]["error"].startswith("BadRow: ")


def test_columns_that_are_called_like_ours_are_renamed(tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_bytes(msgspec.json.encode({"question": "1+1?", "answer": "x", "status": "old", "gold": "2", "level": 5}) + b"\n")
    folder = solve(tmp_path, input=problems, columns={"problem": "question", "answer": "gold"}).folder
    [row] = answer_rows(folder)
    assert row["problem"] == "1+1?"
    assert row["reference_answer"] == "2"
    assert {name: row[name] for name in ("input_answer", "input_status", "gold", "level")} == {
        "input_answer": "x",
        "input_status": "old",
        "gold": "2",
        "level": 5,
    }
    assert "question" not in row
    assert list(Answers(folder, thoughts=True).columns()) == [*list(row)[:7], "input_answer", "input_status", "gold", "level", "thought"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None], "int64"),
        ([1, 2.5], "double"),
        ([2**53 + 1, 1], "int64"),
        ([1, "x"], "string"),
        ([2**63, 1], "string"),
        ([True, 1], "string"),
        ([None], "string"),
        ([[1], [2]], "string"),
    ],
    ids=str,
)
def test_a_column_has_the_type_that_its_values_have_in_common(values: list[Any], kind: str) -> None:
    assert str(_common({each for value in values for each in _kind(value)})) == kind


def test_votes_over_samples(tmp_path: Path) -> None:
    folder = solve(tmp_path, samples=5).folder
    for row in answer_rows(folder):
        mine = [chain for chain in chains(folder) if chain["problem_id"] == row["problem_id"]]
        given = Counter(chain["answer"] for chain in mine if chain["answer"] is not None)
        assert row["samples"] == 5
        assert sum(row["votes"].values()) == given.total()
        assert row["votes"][row["answer"]] == max(row["votes"].values())


@pytest.fixture
def voted(tmp_path: Path) -> Callable[..., Path]:
    """`voted(*answers)`: a run of one problem whose samples gave these answers, each with whether it is correct."""

    def write(*answers: tuple[str | None, bool]) -> Path:
        folder = solve(tmp_path, input=write_problems(tmp_path, 1), samples=len(answers)).folder
        [example, *_] = chains(folder)
        for part in (folder / "chains").iterdir():
            part.unlink()
        store = RunStore(folder)
        rows = [
            blank(
                ChainRow,
                chain_id=f"c{i}",
                problem_id=example["problem_id"],
                input_row=1,
                sample_index=i,
                answer=text,
                correct=right,
                stop_reason="answer",
            )
            for i, (text, right) in enumerate(answers)
        ]
        store.append("chains", rows)
        store.append("steps", [blank(StepRow, chain_id=f"c{i}", step_text=f"thought {i}") for i in range(len(answers))])
        store.close()
        return folder

    return write


@pytest.mark.parametrize(
    ("answers", "answer", "correct", "votes"),
    [
        ([("7", True), ("8", False), ("7.0", True)], "7", True, {"7": 2, "8": 1}),
        ([("8", False), ("7", True), ("8", False)], "8", False, {"8": 2, "7": 1}),
        ([("1/2", False), ("7", True), ("0.5", False)], "1/2", False, {"1/2": 2, "7": 1}),
        ([(None, False), ("7", True), (None, False)], "7", True, {"7": 1}),
        ([("8", False), ("7", True)], "8", False, {"8": 1, "7": 1}),
        ([(None, False), (None, False)], None, False, {}),
    ],
)
def test_the_answer_with_most_votes_is_the_answer(
    voted: Callable[..., Path], answers: list[tuple[str | None, bool]], answer: str | None, correct: bool, votes: dict[str, int]
) -> None:
    [row] = Answers(voted(*answers), thoughts=True).rows()
    assert (row["answer"], row["correct"], row["votes"]) == (answer, correct, votes)
    first = next((place for place, (text, _) in enumerate(answers) if text == answer), 0)
    assert row["thought"] == f"thought {first}"


def test_thoughts_on_request(tmp_path: Path) -> None:
    folder = solve(tmp_path).folder
    steps = sorted(pq.read_table(folder / "steps").to_pylist(), key=lambda row: (row["chain_id"], row["step_index"]))
    by_chain: dict[str, str] = {}
    for step in steps:
        by_chain[step["chain_id"]] = by_chain.get(step["chain_id"], "") + step["step_text"]
    of_problem = {chain["problem_id"]: by_chain[chain["chain_id"]] for chain in chains(folder)}
    assert {row["problem_id"]: row["thought"] for row in Answers(folder, thoughts=True).rows()} == of_problem
    assert all("thought" not in row for row in answer_rows(folder))


def test_of_a_run_that_is_not_finished(tmp_path: Path) -> None:
    whole = solve(tmp_path).folder
    cut(whole, part := tmp_path / "part", 0.5)
    over = {name for batch in read_batches(part, "chains", ["problem_id"]) for name in batch.column("problem_id").to_pylist()}
    states = {row["problem_id"]: row["status"] for row in answer_rows(part)}
    assert {name for name, state in states.items() if state == "done"} == over
    assert set(states.values()) == {"done", "unfinished"}
