"""Files of answers: what is written can be read again, no cell is a formula, and a file is whole or not there."""

import csv
import gzip
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import UsageError
from pipeline.export import answers_file
from pipeline.export.answers_file import form_of, write_answers

ROWS: list[dict[str, Any]] = [
    {"problem_id": "p0", "problem": 'Two lines\nand a "quote", and a comma', "answer": "7", "correct": True, "level": 3},
    {"problem_id": "p1", "problem": "2 < 3?", "answer": None, "correct": None, "votes": {"7": 2, "8": 1}, "score": 0.5},
]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    assert write_answers(path, iter(rows)) == len(rows)
    return path


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", ["answers.jsonl", "answers.jsonl.gz", "answers.NDJSON"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    content = written(tmp_path / name, ROWS).read_bytes()
    text = gzip.decompress(content) if name.endswith(".gz") else content
    assert [json.loads(line) for line in text.splitlines()] == ROWS


def test_csv(tmp_path: Path) -> None:
    first, second = cells(written(tmp_path / "answers.csv", ROWS))
    assert list(first) == ["problem_id", "problem", "answer", "correct", "level", "votes", "score"]
    assert first == {
        "problem_id": "p0",
        "problem": ROWS[0]["problem"],
        "answer": "7",
        "correct": "true",
        "level": "3",
        "votes": "",
        "score": "",
    }
    assert (second["votes"], second["score"], second["answer"]) == ('{"7":2,"8":1}', "0.5", "")


def test_parquet_keeps_types(tmp_path: Path) -> None:
    table = pq.read_table(written(tmp_path / "answers.parquet", ROWS))
    assert {field.name: str(field.type) for field in table.schema} == {
        "problem_id": "string",
        "problem": "string",
        "answer": "string",
        "correct": "bool",
        "level": "int64",
        "votes": "string",
        "score": "double",
    }
    assert table.column("votes").to_pylist() == [None, '{"7":2,"8":1}']


@pytest.mark.parametrize(
    ("values", "kind"),
    [([1, 2.5], "double"), ([1, "x"], "string"), ([2**63, 1], "string"), ([True, 1], "string"), ([None], "string"), ([[1], [2]], "string")],
    ids=str,
)
def test_a_column_of_several_types(tmp_path: Path, values: list[Any], kind: str) -> None:
    table = pq.read_table(written(tmp_path / "answers.parquet", [{"x": value} for value in values]))
    assert str(table.schema.field("x").type) == kind


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=1+1", "'=1+1"),
        (" =1+1", "' =1+1"),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-2+3", "'-2+3"),
        ("\t=1", "'\t'=1"),
        ("\uff1d1+1", "'\uff1d1+1"),
        ("a;=1+1;b", "a;'=1+1;b"),
        ("\x1b[2J", "\\u001b[2J"),
        ("-7", "-7"),
        ("+7.5%", "+7.5%"),
        ("-1,200.50", "-1,200.50"),
        ("1=1", "1=1"),
    ],
)
def test_no_cell_is_a_formula(tmp_path: Path, text: str, cell: str) -> None:
    [row] = cells(written(tmp_path / "answers.csv", [{"answer": text}]))
    assert row["answer"] == cell


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), VALUES), min_size=1, max_size=6))
def test_any_rows_come_back(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("any")
    lines = written(folder / "x.jsonl", rows).read_text(encoding="utf-8").split("\n")
    assert [json.loads(line) for line in lines[:-1]] == rows
    if names := {name for row in rows for name in row}:
        table = pq.read_table(written(folder / "x.parquet", rows))
        assert set(table.column_names) == names
        assert all(
            (value is None) == (row.get(name) is None)
            for name in names
            for value, row in zip(table.column(name).to_pylist(), rows, strict=True)
        )
    written(folder / "x.csv", rows)


def test_values_are_kept_as_they_are_until_all_columns_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers_file, "AT_ONCE", 2)
    rows: list[dict[str, Any]] = [{"day": date(2026, 11, 25), "tags": ["a", number]} for number in range(3)]
    rows.append({"late": 2**53 + 1})
    assert [row["day"] for row in cells(written(tmp_path / "x.csv", rows))] == ['"2026-11-25"'] * 3 + [""]
    table = pq.read_table(written(tmp_path / "x.parquet", rows))
    assert table.column("tags").to_pylist() == ['["a",0]', '["a",1]', '["a",2]', None]
    assert table.column("late").to_pylist() == [None, None, None, 2**53 + 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", "x.parquet"]


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield ROWS[0]
        raise ValueError("the second row")

    for name in ("a.jsonl", "a.csv", "a.parquet"):
        with pytest.raises(ValueError, match="the second row"):
            write_answers(tmp_path / name, broken())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["answers", "answers.xlsx", ".jsonl", "answers.json"])
def test_unknown_formats(name: str) -> None:
    with pytest.raises(UsageError, match="unknown format; expected a name that ends in"):
        form_of(Path(name))


def test_parquet_is_not_compressed_again() -> None:
    for form in (None, "parquet"):
        with pytest.raises(UsageError, match="Parquet files are already compressed"):
            form_of(Path("answers.parquet.gz"), form)
