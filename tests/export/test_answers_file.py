"""Files of rows: what is written can be read again, each cell is as it was, and a file is whole or not there."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import UsageError
from pipeline.export import answers_file
from pipeline.export.answers_file import form_of, write_rows

COLUMNS = {name: pa.string() for name in ("problem_id", "problem", "answer")}
COLUMNS |= {"correct": pa.bool_(), "level": pa.int64(), "votes": pa.string(), "score": pa.float64()}
ROWS: list[dict[str, Any]] = [
    {"problem_id": "p0", "problem": 'Two lines\nand a "quote", and a comma', "answer": "=1+1", "correct": True, "level": 3},
    {"problem_id": "p1", "problem": "2 < 3?", "answer": None, "correct": None, "votes": {"7": 2, "8": 1}, "score": 0.5},
    {"problem_id": "p2", "level": 2**53 + 1, "votes": [1, None]},
]


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


def test_a_file_is_whole_or_not_there_and_has_a_known_format(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield ROWS[0]
        raise ValueError("the second row")

    for name in ("a.jsonl", "a.csv", "a.parquet"):
        with pytest.raises(ValueError, match="the second row"):
            write_rows(tmp_path / name, COLUMNS, broken())
    assert list(tmp_path.iterdir()) == []
    for name in ("answers", "answers.xlsx", "answers.json"):
        with pytest.raises(UsageError, match="unknown format; expected a name that ends in"):
            form_of(Path(name))
