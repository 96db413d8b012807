"""An input is read once: the run folder gives back what it said, and nothing needs the file again."""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs

from pipeline.data.files import Flaw, rows_of
from pipeline.data.reading import read_files, read_problems
from pipeline.errors import BadRow
from pipeline.options import RowSample, RowSet, RunOptions
from pipeline.run.prepare import resume_options
from pipeline.run.run import Observer, run
from pipeline.store.kept_problems import keep_problems, solved_problems
from pipeline.store.run_file import RunFile
from tests.support.killed import cut
from tests.support.paths import ROOT, SIM
from tests.support.runs import rows, said, solve, write_problems

BAD = (b'{"problem_id": "no text"}', b"not JSON", b'{"problem": "Which?", "options": ["one", "two"], "answer": "B", "level": 3}')


def sayings(items: Iterable[object]) -> list[object]:
    """The items, bad rows by what they say."""
    return [(item.row, item.problem_id, item.what) if isinstance(item, BadRow) else item for item in items]


@pytest.mark.parametrize("part", [RowSet(), RowSet(limit=5), RowSet(sample=RowSample(6, 3))], ids=str)
def test_the_folder_gives_back_what_the_input_says(tmp_path: Path, part: RowSet) -> None:
    path = write_problems(tmp_path, 8, BAD)
    items = [item for item, _ in read_files([path], None, part) if item.row <= (part.limit or 99)]
    kept = keep_problems(tmp_path, read_files([path], None, part), part.limit)
    assert sayings(kept) == sayings(kept) == sayings(items)
    assert kept.counts(1).rows == len(items)
    records = dict(enumerate(rows_of(path), 1))
    for item, record in kept.with_records():
        assert record == records[item.row] or (isinstance(record, Flaw) and isinstance(records[item.row], Flaw))


def test_what_lines_of_a_batch_want_is_counted(tmp_path: Path) -> None:
    from tests.support.requests import request, write_batch

    kept = keep_problems(tmp_path, read_files([write_batch(tmp_path / "p.jsonl", [request("a", n=3), request("b"), request("c", n=2)])]))
    assert [(found.rows, found.chains, found.samples) for found in map(kept.counts, (1, 4))] == [(3, 6, 3), (3, 9, 4)]
    assert list(kept) == list(read_problems(tmp_path / "p.jsonl"))


def test_all_columns_stay_with_the_run(tmp_path: Path) -> None:
    table = {"Question": ["1+1?", "2+2?"], "gold": [2, 4], "Level": ["easy", None], "when": pa.array([1, 2], pa.timestamp("s"))}
    pq.write_table(pa.table(table), tmp_path / "odd.parquet")
    folder = solve(tmp_path, input=tmp_path / "odd.parquet", columns={"answer": "gold"}).folder
    kept = pq.read_table(folder / "problems.parquet").to_pylist()
    assert [(row["problem"], row["reference_answer"]) for row in kept] == [("1+1?", "2"), ("2+2?", "4")]
    assert [msgspec.json.decode(row["input"]) for row in kept] == [
        {"Question": "1+1?", "gold": 2, "Level": "easy", "when": "1970-01-01T00:00:01"},
        {"Question": "2+2?", "gold": 4, "Level": None, "when": "1970-01-01T00:00:02"},
    ]


def test_nothing_can_change_once_the_run_has_begun(tmp_path: Path) -> None:
    whole = solve(tmp_path, "whole")
    cut(whole.folder, part := tmp_path / "part", 0.5)
    problems = tmp_path / "problems.jsonl"
    watched = Observer(ready=lambda found: problems.unlink())  # after it was read, before an engine opens
    options = RunOptions(graph=ROOT / "graphs/speccot.yaml", engines=SIM, input=(str(problems),), output=tmp_path / "again")
    assert said(run(options, watched)) == said(whole)
    assert said(run(resume_options(part))) == said(whole)


def test_a_limit_grows_without_the_input(tmp_path: Path) -> None:
    problems = write_problems(tmp_path, 9)
    folder = solve(tmp_path, input=problems, limit=3).folder
    problems.unlink()
    assert (RunFile.read(folder).input.rows, pq.read_metadata(folder / "problems.parquet").num_rows) == (3, 9)
    for limit in (5, None):
        more = structs.replace(resume_options(folder), limit=limit)
        assert run(more).exit_code == 0
        assert sorted(row["input_row"] for row in rows(folder, "chains")) == list(range(1, 1 + (limit or 9)))
        assert RunFile.read(folder).input.rows == (limit or 9)
    assert len(list(solved_problems(folder, RunFile.read(folder)))) == 9
