"""A run keeps its problems: what its folder gives back is what the input file said, and the file is needed no more."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from pipeline.data.problems import open_problems
from pipeline.data.rows import Flaw
from pipeline.errors import BadRow, InputError
from pipeline.session.options import resume_options
from pipeline.session.run import run
from pipeline.store.kept_problems import kept_problems
from pipeline.store.run_file import RunFile
from tests.support.killed import cut
from tests.support.runs import said, solve, write_problems

pytestmark = pytest.mark.slow  # whole runs

BAD = (b'{"problem_id": "no text"}', b"not JSON", b'{"problem": "Which?", "options": ["one", "two"], "answer": "B", "level": 3}')


def told(items: Iterable[object]) -> list[object]:
    """The items, bad rows by what they say."""
    return [(item.row, item.problem_id, str(item)) if isinstance(item, BadRow) else item for item in items]


@pytest.mark.parametrize("options", [{}, {"limit": 5}, {"random": "6:3"}], ids=str)
def test_the_folder_gives_back_what_the_input_says(tmp_path: Path, options: dict[str, object]) -> None:
    problems = write_problems(tmp_path, 8, BAD)
    folder = solve(tmp_path, input=problems, **options).folder
    about = RunFile.read(folder).input
    kept, file = kept_problems(folder, about), open_problems(problems, about.columns, about.part)
    assert kept is not None
    assert kept.check() == file.check()
    assert told(kept.unchanged()) == told(file.unchanged())
    theirs = [record for _, record in file.with_records()]
    ours = [record for _, record in kept.with_records()]
    assert [type(record) for record in ours] == [type(record) for record in theirs]
    assert [each for each in ours if not isinstance(each, Flaw)] == [each for each in theirs if not isinstance(each, Flaw)]


def test_all_columns_stay_with_the_run(tmp_path: Path) -> None:
    table = {"Question": ["1+1?", "2+2?"], "gold": [2, 4], "Level": ["easy", None], "when": pa.array([1, 2], pa.timestamp("s"))}
    pq.write_table(pa.table(table), tmp_path / "odd.parquet")
    folder = solve(tmp_path, input=tmp_path / "odd.parquet", columns={"problem": "Question", "answer": "gold"}).folder
    kept = pq.read_table(folder / "problems").to_pylist()
    assert [(row["problem"], row["reference_answer"]) for row in kept] == [("1+1?", "2"), ("2+2?", "4")]
    assert [msgspec.json.decode(row["input"]) for row in kept] == [
        {"Question": "1+1?", "gold": 2, "Level": "easy", "when": "1970-01-01T00:00:01"},
        {"Question": "2+2?", "gold": 4, "Level": None, "when": "1970-01-01T00:00:02"},
    ]


def test_a_run_goes_on_without_its_input(tmp_path: Path) -> None:
    whole = solve(tmp_path, "whole")
    cut(whole.folder, part := tmp_path / "part", 0.5)
    (tmp_path / "problems.jsonl").rename(tmp_path / "moved.jsonl")
    again = run(resume_options(part))
    assert said(again) == said(whole)


def test_an_input_that_was_not_kept_is_asked_for(tmp_path: Path) -> None:
    folder = solve(tmp_path, keep_input=False).folder
    assert not (folder / "problems").exists()
    (tmp_path / "problems.jsonl").rename(tmp_path / "moved.jsonl")
    with pytest.raises(InputError, match=r"problems\.jsonl"):
        run(resume_options(folder))
    assert run(structs.replace(resume_options(folder), input=tmp_path / "moved.jsonl")).nothing_to_do


def test_rows_without_a_problem_are_kept_with_what_is_wrong(tmp_path: Path) -> None:
    folder = solve(tmp_path, input=write_problems(tmp_path, 2, BAD)).folder
    found = list(open_problems(tmp_path / "problems.jsonl"))
    kept = kept_problems(folder, RunFile.read(folder).input)
    assert kept is not None
    wrong = [item for item in kept if isinstance(item, BadRow)]
    assert told(wrong) == told(item for item in found if isinstance(item, BadRow))
    assert len(wrong) == 2
