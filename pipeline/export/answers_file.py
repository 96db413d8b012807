"""Rows as a file: rows or a query enter, a file of JSON lines, CSV or Parquet leaves, whole or not at all."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UsageError
from pipeline.files import new_file, whole_file
from pipeline.store.query import Query

Row = dict[str, Any]
COPIED = {".csv": "FORMAT csv, HEADER", ".parquet": "FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 8192"}
"""The formats that DuckDB writes, with its options."""
AT_ONCE = 4096
"""Rows that are encoded together."""


def form_of(path: Path) -> str:
    """The format by the ending of a file's name, which is the result; raises `UsageError` for an unknown one."""
    if (form := path.suffix.lower()) not in (".jsonl", *COPIED):
        raise UsageError(f"{path}: unknown format; expected a name that ends in .jsonl, .csv or .parquet")
    return form


def write_rows(path: Path, columns: Mapping[str, pa.DataType] | pa.Schema, rows: Iterable[Row]) -> int:
    """Write `rows` with these `columns` to a file in the format of its name; return the number of rows.

    Values of text columns that are no text become JSON, and in JSON lines all values stay as they are. Raises `UsageError` for an unknown
    format, `OSError` where the file cannot be written; then no file is left.
    """
    form, written = form_of(path), count()
    counted = (row for row, _ in zip(rows, written, strict=False))
    with whole_file(path) as file:
        if form == ".parquet":
            _write_parquet(file, pa.schema(columns), counted)
        elif form == ".csv":
            _write_csv(file, list(columns), counted)
        else:
            file.writelines(msgspec.json.encode(row, enc_hook=str) + b"\n" for row in counted)
    return next(written)


def write_query(path: Path, db: Query, sql: str) -> int:
    """Write the rows of a query that `db` has accepted, as `write_rows` does; they need not be in memory together."""
    if (form := form_of(path)) in COPIED:
        with new_file(path) as draft:
            return db.copy(sql, draft, COPIED[form])
    written = 0
    with whole_file(path) as file:
        for rows in db.json_rows(sql):
            file.write("\n".join([*rows, ""]).encode())
            written += len(rows)
    return written


def _write_csv(file: BinaryIO, names: Sequence[str], rows: Iterable[Row]) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(names)
    writer.writerows(["" if (value := row.get(name)) is None else _as_text(value) for name in names] for row in rows)
    text.detach()


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
