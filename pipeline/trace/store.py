"""The one door to the Parquet writer: rows of `trace.events` enter, the folders `calls`, `steps` and `chains` leave.

Rows become columns on arrival and row groups as they fill. A part that is being written has a name of its own, so that
`part-*.parquet` always opens; what is in it can be lost with the process, finished parts cannot. Nothing is read here.
"""

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Meta, Struct
from msgspec.structs import astuple

from pipeline.errors import RunFolderError
from pipeline.trace.events import CallRow, ChainRow, StepRow

TABLES: dict[str, type[Struct]] = {"calls": CallRow, "steps": StepRow, "chains": ChainRow}
BATCH_ROWS = 256
"""Rows converted in one go: the interpreter's lock is held for about a millisecond a column."""
GROUP_ROWS = 8192
GROUP_BYTES = 16 << 20
"""A row group is written when it has this many rows or bytes (of Arrow arrays)."""
PART_GROUPS = 8
"""A part is finished after this many row groups."""

_SCALARS: dict[Any, pa.DataType] = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
_UNIQUE = ("_text", "_message", "request_id")


def schema_of(row: type[Struct]) -> pa.Schema:
    """Arrow schema of a Struct: types from its annotations, unit and foreign names as field metadata."""
    return pa.schema([_field(name, hint) for name, hint in get_type_hints(row, include_extras=True).items()])


def columns_of(schema: pa.Schema, rows: Sequence[Struct]) -> pa.RecordBatch:
    """`rows`, of the Struct of that `schema`, as columns."""
    columns = zip(*map(astuple, rows), strict=True)
    arrays = [_array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class TraceStore:
    """The three tables of one run folder, or others, open for appending; parts of earlier sessions stay as they are.

    Not for use from two threads at once. Every method raises `RunFolderError` when the folder cannot be written.
    """

    def __init__(self, folder: Path, tables: Mapping[str, type[Struct]] = TABLES) -> None:
        self.folder = folder
        self._tables = {name: _Table(folder / name, schema_of(row)) for name, row in tables.items()}

    def append(self, table: str, rows: Sequence[Struct]) -> None:
        """Take over `rows` of `table`; full row groups go to disk."""
        for start in range(0, len(rows), BATCH_ROWS):
            self._tables[table].append(rows[start : start + BATCH_ROWS])

    def close(self) -> None:
        """Finish all parts; a table without any gets an empty one. Tries every table, then raises the first error."""
        errors = []
        for table in self._tables.values():
            try:
                table.close()
            except RunFolderError as error:
                errors.append(error)
        if errors:
            raise errors[0]


class _Table:
    """One folder of parts."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder, self._schema = folder, schema
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = self._groups = 0
        self._parts: list[int] = []
        self._closed = False
        with self._errors():
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(errno.EACCES, "not writable")
            for unfinished in folder.glob("part-*.parquet.tmp"):
                unfinished.unlink()  # without a footer no one can read it
            self._parts = [int(part.name[5:10]) for part in folder.glob("part-[0-9][0-9][0-9][0-9][0-9].parquet")]

    def append(self, rows: Sequence[Struct]) -> None:
        batch = columns_of(self._schema, rows)
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= GROUP_ROWS or self._pending_bytes >= GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._pending or not (self._parts or self._writer):
            self._write_group()
        self._finish_part()

    def _write_group(self) -> None:
        group = pa.Table.from_batches(self._pending, self._schema)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        with self._errors():
            self._writer = self._writer or self._open_part()
            self._writer.write_table(group, row_group_size=max(group.num_rows, 1))
        self._groups += 1
        if self._groups == PART_GROUPS:
            self._finish_part()

    def _open_part(self) -> pq.ParquetWriter:
        self._parts.append(max(self._parts, default=-1) + 1)
        self._groups = 0
        repeating = [field.name for field in self._schema if pa.types.is_string(field.type) and not field.name.endswith(_UNIQUE)]
        return pq.ParquetWriter(f"{self._path}.tmp", self._schema, compression="zstd", use_dictionary=repeating)

    def _finish_part(self) -> None:
        if self._writer:
            with self._errors():
                self._writer.close()
                os.replace(f"{self._path}.tmp", self._path)
            self._writer = None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            self._drop_part()
            number = getattr(error, "errno", None)
            raise RunFolderError(f"{self._folder}: cannot write the trace: {os.strerror(number) if number else error}") from error

    def _drop_part(self) -> None:
        """After a failed write the part gets no footer, whatever `close` says; its space may save the other tables."""
        writer, self._writer = self._writer, None
        with suppress(OSError, pa.ArrowException):
            if writer:
                writer.close()
        with suppress(OSError):
            if self._parts:
                os.unlink(f"{self._path}.tmp")

    @property
    def _path(self) -> Path:
        return self._folder / f"part-{self._parts[-1]:05}.parquet"


def _field(name: str, hint: Any) -> pa.Field:
    metadata: dict[str, str] = {}
    if get_origin(hint) is Annotated:
        hint, *metas = get_args(hint)
        metadata = {key: value for meta in metas if isinstance(meta, Meta) for key, value in (meta.extra or {}).items()}
    kind, nullable = _kind(hint)
    return pa.field(name, kind, nullable, metadata or None)


def _kind(hint: Any) -> tuple[pa.DataType, bool]:
    """Arrow type of an annotation, and whether it may be null."""
    if get_origin(hint) is UnionType:
        return _kind(next(arm for arm in get_args(hint) if arm is not NoneType))[0], True
    if get_origin(hint) is tuple:
        return pa.list_(pa.field("item", *_kind(get_args(hint)[0]))), False
    return _SCALARS[hint], False


def _array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column; lists are flattened first, which is several times faster than to let Arrow walk them."""
    if not pa.types.is_list(kind):
        return _flat_array(column, kind)
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, column), np.int32, len(column)), out=offsets[1:])
    flat = tuple(chain.from_iterable(column))
    return pa.ListArray.from_arrays(pa.array(offsets), _array(flat, kind.value_type), type=kind)


def _flat_array(column: Sequence[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(column, kind)
    except UnicodeEncodeError:
        # A lone surrogate, which UTF-8 cannot hold: one odd character must not end the run.
        return pa.array([text if text is None else text.encode(errors="replace").decode() for text in column], kind)


def recover(folder: Path) -> None:
    """placeholder until the write-ahead files are merged"""
