"""Rows as a file: rows or a query enter, a file of JSON lines, CSV or Parquet leaves, whole or not at all."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from pipeline.errors import UsageError
from pipeline.files import new_file, whole_file
from pipeline.store.query import Query

Row = dict[str, Any]
TABLES: dict[str, Any] = {".csv": pyarrow.csv.CSVWriter, ".parquet": partial(pq.ParquetWriter, compression="zstd")}
"""The formats that have columns, with what writes batches of rows."""
COPIED = {".csv": "FORMAT csv, HEADER", ".parquet": "FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 8192"}
"""The same formats with DuckDB's options for them."""
AT_ONCE = 4096
"""Rows that are encoded together."""


def form_of(path: Path) -> str:
    """The format by the ending of a file's name, which is the result; raises `UsageError` for an unknown one."""
    if (form := path.suffix.lower()) not in (".jsonl", *TABLES):
        raise UsageError(f"{path}: unknown format; expected a name that ends in .jsonl, .csv or .parquet")
    return form


def write_rows(path: Path, columns: Mapping[str, pa.DataType] | pa.Schema, rows: Iterable[Row]) -> int:
    """Write `rows` with these `columns` to a file in the format of its name; return the number of rows.

    Values of text columns that are no text become JSON, and in JSON lines all values stay as they are. Raises `UsageError` for an unknown
    format, `OSError` where the file cannot be written; then no file is left.
    """
    form, schema, left, written = form_of(path), pa.schema(columns), iter(rows), 0
    with whole_file(path) as file, TABLES[form](file, schema) if form in TABLES else nullcontext() as table:
        while some := list(islice(left, AT_ONCE)):
            if table is None:
                file.writelines(msgspec.json.encode(row, enc_hook=str) + b"\n" for row in some)
            else:
                table.write_batch(_batch(schema, some))
            written += len(some)
    return written


def _batch(schema: pa.Schema, rows: Sequence[Row]) -> pa.RecordBatch:
    columns = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        values = [row.get(name) for row in rows]
        columns.append(pa.array(map(_as_text, values) if kind == pa.string() else values, kind))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _as_text(value: Any) -> str | None:
    return value if isinstance(value, str | None) else msgspec.json.encode(value, enc_hook=str).decode()


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
