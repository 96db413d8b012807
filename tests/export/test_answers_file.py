"""Files of rows: what is written can be read again, each cell is as it was, and a file is whole or not there."""

import csv
import gzip
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
    {"problem_id": "p0", "problem": 'Two lines\nand a "quote", and a comma', "answer": "7", "correct": True, "level": 3},
    {"problem_id": "p1", "problem": "2 < 3?", "answer": None, "correct": None, "votes": {"7": 2, "8": 1}, "score": 0.5},
    {"problem_id": "p2", "level": 2**53 + 1, "votes": [1, None]},
]


def written(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    assert write_rows(path, COLUMNS, iter(rows)) == len(rows)
    return path


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", ["answers.jsonl", "answers.jsonl.gz", "answers.NDJSON"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    content = written(tmp_path / name).read_bytes()
    text = gzip.decompress(content) if name.endswith(".gz") else content
    assert [json.loads(line) for line in text.splitlines()] == ROWS


def test_csv(tmp_path: Path) -> None:
    first, second, third = cells(written(tmp_path / "answers.csv"))
    assert list(first) == list(COLUMNS)
    assert tuple(first.values()) == ("p0", ROWS[0]["problem"], "7", "true", "3", "", "")
    assert (second["votes"], second["score"], second["answer"]) == ('{"7":2,"8":1}', "0.5", "")
    assert third["level"] == "9007199254740993"


def test_parquet_keeps_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_file, "AT_ONCE", 2)
    table = pq.read_table(written(tmp_path / "answers.parquet"))
    assert {field.name: field.type for field in table.schema} == COLUMNS
    texts = {"votes": [None, '{"7":2,"8":1}', "[1,null]"]}
    assert table.to_pydict() == {name: [row.get(name) for row in ROWS] for name in COLUMNS} | texts


@pytest.mark.parametrize("text", ["=1+1", "-7", "\t=1", "a;b", 'say "x", he said', "two\nlines", "\x1b[2J"])
def test_a_cell_is_written_as_it_is(tmp_path: Path, text: str) -> None:
    [row] = cells(written(tmp_path / "answers.csv", [{"answer": text}]))
    assert row["answer"] == text


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield ROWS[0]
        raise ValueError("the second row")

    for name in ("a.jsonl", "a.csv", "a.parquet"):
        with pytest.raises(ValueError, match="the second row"):
            write_rows(tmp_path / name, COLUMNS, broken())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["answers", "answers.xlsx", ".jsonl", "answers.json"])
def test_unknown_formats(name: str) -> None:
    with pytest.raises(UsageError, match="unknown format; expected a name that ends in"):
        form_of(Path(name))


def test_parquet_is_not_compressed_again() -> None:
    for form in (None, "parquet"):
        with pytest.raises(UsageError, match="Parquet files are already compressed"):
            form_of(Path("answers.parquet.gz"), form)
