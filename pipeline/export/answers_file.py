"""Rows as a file: rows or a query enter, a file of JSON lines, CSV or Parquet leaves, whole or not at all."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UsageError
from pipeline.files import new_file, whole_file
from pipeline.store.query import Query

Row = dict[str, Any]
Form = Literal["jsonl", "csv", "parquet"]
SUFFIXES: dict[str, Form] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
COPIED = {"csv": "FORMAT csv, HEADER", "parquet": "FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 8192"}
"""The formats that DuckDB writes, with its options."""
AT_ONCE = 4096
"""Rows that are encoded together."""


def form_of(path: Path, asked: Form | None = None) -> Form:
    """The format that was `asked` for, else by the file's name; raises `UsageError`. Text may be compressed, with `.gz`."""
    inner = path.name.lower().removesuffix(".gz")
    form = asked or SUFFIXES.get(Path(inner).suffix)
    if form is None:
        raise UsageError(f"{path}: unknown format; expected a name that ends in .jsonl, .csv (or either with .gz) or .parquet, or --format")
    if form == "parquet" and inner != path.name.lower():
        raise UsageError(f"{path}: Parquet files are already compressed; leave out .gz")
    return form


def write_rows(path: Path, columns: Mapping[str, pa.DataType] | pa.Schema, rows: Iterable[Row], form: Form | None = None) -> int:
    """Write `rows` with these `columns` to a file in this format, else by its name; return the number of rows.

    Values of text columns that are no text become JSON, and in JSON lines all values stay as they are. Raises `UsageError` for an unknown
    format, `OSError` where the file cannot be written; then no file is left.
    """
    form, written = form_of(path, form), count()
    counted = (row for row, _ in zip(rows, written, strict=False))
    with whole_file(path) as file:
        if form == "parquet":
            _write_parquet(file, pa.schema(columns), counted)
        else:
            _write_text(file, form, list(columns), counted)
    return next(written)


def write_query(path: Path, db: Query, sql: str, form: Form | None = None) -> int:
    """Write the rows of a query that `db` has accepted, as `write_rows` does; they need not be in memory together."""
    form = form_of(path, form)
    if form != "jsonl":
        packed = ", COMPRESSION gzip" if path.suffix == ".gz" else ""
        with new_file(path) as draft:
            return db.copy(sql, draft, COPIED[form] + packed)
    written = 0
    with whole_file(path) as file:
        for rows in db.json_rows(sql):
            file.write("\n".join([*rows, ""]).encode())
            written += len(rows)
    return written


def _write_text(file: BinaryIO, form: Form, names: Sequence[str], rows: Iterable[Row]) -> None:
    if form == "jsonl":
        file.writelines(msgspec.json.encode(row, enc_hook=str) + b"\n" for row in rows)
        return
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(map(_cell, names))
    writer.writerows([_cell(row.get(name)) for name in names] for row in rows)
    text.detach()


def _cell(value: Any) -> str:
    return "" if value is None else _as_text(value)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()


def _write_parquet(file: BinaryIO, schema: pa.Schema, rows: Iterator[Row]) -> None:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while some := list(islice(rows, AT_ONCE)):
            columns = [[row.get(field.name) for row in some] for field in schema]
            for place, field in enumerate(schema):
                if field.type == pa.string():
                    columns[place] = [None if value is None else _as_text(value) for value in columns[place]]
            writer.write_batch(pa.RecordBatch.from_arrays(list(map(pa.array, columns, schema.types)), schema=schema))
