"""Rows of answers as a file: rows enter, a file of JSON lines, CSV or Parquet leaves, whole or not at all."""

import csv
import io
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UsageError
from pipeline.export.output import whole_file
from pipeline.text import cell

Row = dict[str, Any]
Form = Literal["jsonl", "csv", "parquet"]
SUFFIXES: dict[str, Form] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}
AT_ONCE = 4096
"""Rows that are encoded together."""
EXACT = 2**53
"""Up to which floating-point numbers hold every integer."""
SCALARS: dict[type, pa.DataType] = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


class _Large:
    """An integer that no floating-point number is for certain."""


def form_of(path: Path, asked: Form | None = None) -> Form:
    """The format that was `asked` for, else that of the name of a file; raises `UsageError`. Text may be compressed, with `.gz`."""
    inner = path.name.lower().removesuffix(".gz")
    form = asked or SUFFIXES.get(Path(inner).suffix)
    if form is None:
        raise UsageError(f"{path}: unknown format; expected a name that ends in .jsonl, .csv (or either with .gz) or .parquet, or --format")
    if form == "parquet" and inner != path.name.lower():
        raise UsageError(f"{path}: Parquet files are already compressed; leave out .gz")
    return form


def write_answers(path: Path, rows: Iterable[Row], form: Form | None = None) -> int:
    """Write the rows to a file in this format, or else that of its name; the number of rows.

    CSV and Parquet name their columns before the first row: until all are known the rows are kept in a nameless file next to it. Raises
    `UsageError` for an unknown format, `OSError` where the file cannot be written; then no file is left.
    """
    form = form_of(path, form)
    with whole_file(path) as file:
        if form == "jsonl":
            return write_json_lines(file, rows)
        with TemporaryFile(dir=path.absolute().parent) as kept:
            met = _keep(kept, rows)
            kept.seek(0)
            chunks = _kept_chunks(kept)
            return _write_csv(file, [*met], chain.from_iterable(chunks)) if form == "csv" else _write_parquet(file, met, chunks)


def write_batches(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], form: Form | None = None) -> int:
    """Write a table to a file in this format, or else that of its name; the number of rows. Raises as `write_answers` does."""
    form, rows = form_of(path, form), 0
    with whole_file(path) as file:
        if form != "parquet":
            lines = (row for batch in batches for row in batch.to_pylist())
            return write_json_lines(file, lines) if form == "jsonl" else _write_csv(file, schema.names, lines)
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch)
                rows += batch.num_rows
    return rows


def write_json_lines(file: BinaryIO, rows: Iterable[Row]) -> int:
    """Write one JSON object a line; the number of rows."""
    count = 0
    for count, row in enumerate(rows, 1):  # noqa: B007
        file.write(msgspec.json.encode(row, enc_hook=str) + b"\n")
    return count


def _write_csv(file: BinaryIO, names: Sequence[str], rows: Iterable[Row]) -> int:
    text, count = io.TextIOWrapper(file, "utf-8", newline="", write_through=True), 0
    writer = csv.writer(text)
    writer.writerow([_cell(name) for name in names])
    for count, row in enumerate(rows, 1):  # noqa: B007
        writer.writerow([_cell(row.get(name)) for name in names])
    text.detach()
    return count


def _cell(value: Any) -> str:
    return "" if value is None else cell(value if isinstance(value, str) else _json(value))


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _write_parquet(file: BinaryIO, met: Mapping[str, set[type]], chunks: Iterable[list[Row]]) -> int:
    """`met`: the types of the values of each column. The type of a column is the one that they have in common, else text."""
    schema = pa.schema([(name, _common(kinds)) for name, kinds in met.items()])
    count = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for some in chunks:
            columns = [pa.array([_fitting(row.get(field.name), field.type) for row in some], field.type) for field in schema]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            count += len(some)
    return count


def _keep(file: BinaryIO, rows: Iterable[Row]) -> dict[str, set[type]]:
    """Write the rows so that `_kept_chunks` reads the same values; the types of the values of each column, in the order of the columns."""
    met: dict[str, set[type]] = {}
    rows = iter(rows)
    while chunk := list(islice(rows, AT_ONCE)):
        for row in chunk:
            for name, value in row.items():
                kinds = met.setdefault(name, set())
                if value is not None:
                    kinds.add(_Large if type(value) is int and abs(value) > EXACT else type(value))
                    if type(value) is int and not -(2**63) <= value < 2**63:
                        kinds.add(str)
        pickle.dump(chunk, file, pickle.HIGHEST_PROTOCOL)
    return met


def _common(kinds: set[type]) -> pa.DataType:
    if kinds <= {int, _Large} and kinds:
        return pa.int64()
    if len(kinds) == 1:
        return SCALARS.get(next(iter(kinds)), pa.string())
    return pa.float64() if kinds == {int, float} else pa.string()


def _fitting(value: Any, kind: pa.DataType) -> Any:
    return _json(value) if kind == pa.string() and value is not None and not isinstance(value, str) else value


def _kept_chunks(file: BinaryIO) -> Iterator[list[Row]]:
    with suppress(EOFError):
        while True:
            yield pickle.load(file)  # what `_keep` has just written
