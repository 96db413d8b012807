"""The files of one table: finished parts (Parquet) and the write-ahead file of rows that are in no part yet.

    calls/part-00000.parquet    labelled RUN/calls/00000
    calls/part-00001.parquet    labelled RUN/calls/00001
    calls/wal-00002.arrows      labelled RUN/calls/00002, until it is part 2

The numbers of a table begin at 0 and have no gap. A file says in its schema where it belongs, so one that is missing, or that comes from
elsewhere, is told without a list of the files. The pages of a part have checksums, which are verified whenever pyarrow reads them.

Nothing is written by a reader and no lock is taken, so a run may continue meanwhile.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.errors import InputError, reason
from pipeline.files import publish
from pipeline.store.columns import schema_of
from pipeline.store.events import ROWS
from pipeline.store.folder import PROBLEMS, folder_id
from pipeline.store.wal import read_wal
from pipeline.system.machine import core_count

Row = TypeVar("Row", bound=Struct)
GROUP_ROWS = 8192
GROUP_BYTES = 16 << 20
"""A row group is written when it has this many rows, or bytes of Arrow arrays; at most that much is held in memory."""
PART_GROUPS = 8
"""A part is full after this many row groups."""
BATCH_ROWS = 1024
"""A batch of a part that is read has at most this many rows."""
REMEDY = "put the files of the run back from a copy, or start a new run"

KEPT = "problems"
SHARDS = "shards"
"""The folder in a run folder with those of its shards, while a run on replicas is not finished; then its rows are there."""
_LABEL = b"pipeline.file"
_NAME = re.compile(r"(?:part|wal)-(\d{5,})\.(?:parquet|arrows)")
_UNIQUE = ("_text", "_message", "request_id")
"""Endings of the names of columns whose strings hardly ever repeat; the other columns of strings are dictionary-encoded."""


class Part:
    """A part that is being written, under a temporary name until it is finished. Methods raise `OSError` or an Arrow error."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self._schema = path, schema
        self._draft = path.with_name(f"{path.name}.tmp")
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._groups = 0

    @property
    def full(self) -> bool:
        """True if the part has all its row groups and is to be finished."""
        return self._groups >= PART_GROUPS

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch; a row group that is full then is written."""
        self._pending.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.get_total_buffer_size()
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write_group()

    def finish(self) -> None:
        """Write the remaining rows, or an empty table where there were none, and give the part its name, durably."""
        if self._pending or not self._groups:
            self._write_group()
        assert self._writer is not None
        self._writer.close()
        publish(self._draft, self.path)

    def drop(self) -> None:
        """Delete the unfinished part: on a full disk its space may let other tables be written."""
        with suppress(OSError, pa.ArrowException):
            if self._writer:
                self._writer.close()
        with suppress(OSError):
            os.unlink(self._draft)

    def _write_group(self) -> None:
        group = pa.Table.from_batches(self._pending, self._schema)
        self._pending, self._rows, self._bytes = [], 0, 0
        if self._writer is None:
            repeating = [field.name for field in self._schema if pa.types.is_string(field.type) and not field.name.endswith(_UNIQUE)]
            how = {"compression": "zstd", "use_dictionary": repeating, "write_page_checksum": True}
            self._writer = pq.ParquetWriter(self._draft, self._schema, **how)
        self._writer.write_table(group, row_group_size=max(group.num_rows, 1))
        self._groups += 1


def write_part(path: Path, rows: pa.Table) -> None:
    """Write a part of `rows`, whose schema has its label, in place of any that has its name. Raises `OSError` or an Arrow error."""
    part = Part(path, rows.schema)
    try:
        for batch in rows.to_batches(GROUP_ROWS):
            part.add(batch)
        part.finish()
    except BaseException:
        part.drop()
        raise


def labelled(schema: pa.Schema, run_id: str, table: str, number: int) -> pa.Schema:
    """`schema` with the label of a file in its metadata."""
    return schema.with_metadata({**(schema.metadata or {}), _LABEL: f"{run_id}/{table}/{number:05}".encode()})


def _check_label(file: Path, metadata: Mapping[bytes, bytes] | None) -> None:
    """Raise `InputError` for a file whose label is that of another place; the file of the problems has none."""
    if file.name == PROBLEMS:
        return
    label = (metadata or {}).get(_LABEL, b"").decode()
    of, _, place = label.partition("/")
    if place != f"{file.parent.name}/{number_of(file):05}" or of != (folder_id(file.parent.parent) or of):
        raise InputError(str(file), f"does not belong here: it is labelled {label or 'as nothing of a run'}; {REMEDY}")


def number_of(file: Path) -> int:
    """The number in the name of a part or write-ahead file; -1 for another name."""
    found = _NAME.fullmatch(file.name)
    return int(found[1]) if found else -1


def shards_of(run: Path, table: str = "") -> list[Path]:
    """The folders of the shards in which the rows of a run on replicas are, or those of a table; none where they are in its own tables."""
    shards = [*(run / SHARDS).iterdir()] if table != KEPT and (run / SHARDS).is_dir() else []
    return sorted(shards, key=lambda shard: int(shard.name))


def table_files(run: Path, table: str) -> list[Path]:
    """The files that hold the rows of a table, in the order of the rows: its parts, and each write-ahead file that is no part yet.
    Of a run on replicas these are the files of its shards.

    Raises `InputError` for a table that lacks a file or cannot be read.
    """
    shards = shards_of(run, table)
    return [file for shard in shards for file in table_files(shard, table)] if shards else own_files(run, table)


def own_files(run: Path, table: str) -> list[Path]:
    """`table_files` without those of shards."""
    if table == KEPT and (run / PROBLEMS).exists():
        return [run / PROBLEMS]
    place = run / table
    with readable(place):
        files = sorted(place.iterdir()) if os.path.lexists(place) else []
    # Parts sort before write-ahead files, and one that is both is a part: its write-ahead file was about to go.
    numbered: dict[int, Path] = {}
    for file in files:
        if number_of(file) >= 0:
            numbered.setdefault(number_of(file), file)
    for expected, number in enumerate(sorted(numbered)):
        if number != expected:
            raise InputError(str(place), f"part-{expected:05}.parquet is missing, and {numbered[number].name} is there; {REMEDY}")
    return [numbered[number] for number in sorted(numbered)]


def check_parts(parts: Sequence[Path]) -> None:
    """Verify labels and checksums of parts, each once in a process. Raises `InputError`."""

    def check(part: Path) -> None:
        with readable(part):
            _check_once(part, os.stat(part).st_mtime_ns)

    with ThreadPoolExecutor(core_count()) as threads:
        list(threads.map(check, parts))


@lru_cache(1 << 14)
def _check_once(part: Path, mtime_ns: int) -> None:
    with open_part(part) as file:
        file.scan_contents()


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn errors of reading `file` into an `InputError`."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise InputError(str(file), "cannot be read: its path is not UTF-8; rename the folder") from error
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        remedy = "" if getattr(error, "errno", None) else f"; {REMEDY}"  # else it is damaged
        raise InputError(str(file), f"cannot be read: {reason(error)}{remedy}") from error


@contextmanager
def open_part(part: Path) -> Iterator[pq.ParquetFile]:
    """The Parquet file of a part, whose pages are verified as they are read. Raises `InputError`, `OSError` or an Arrow error."""
    with pq.ParquetFile(part, pre_buffer=False, page_checksum_verification=True) as file:
        _check_label(part, file.schema_arrow.metadata)
        yield file


def has_table(run: Path, table: str) -> bool:
    """True if a run folder has this table, be it empty. Raises `InputError` as `table_files` does."""
    return bool(table_files(run, table))


def count_rows(run: Path, table: str) -> int:
    """The number of rows of a table, of parts from their footers. Raises `InputError` as `read_batches` does."""
    rows = 0
    for file in table_files(run, table):
        with readable(file):
            is_part = file.suffix == ".parquet"
            rows += pq.read_metadata(file).num_rows if is_part else sum(batch.num_rows for batch in read_file(file, ()))
    return rows


def read_batches(run: Path, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Record batches of the `columns` of a table, in the order in which its rows were written.

    A run that was cut short may have no rows. Raises `InputError` where the files are not those of the run, or cannot be read.
    """
    return (batch for file in table_files(run, table) for batch in read_file(file, columns))


def read_whole(run: Path, table: str) -> Iterator[pa.RecordBatch]:
    """Record batches of all columns of a table, in the order of `ROWS`. Raises `InputError` as `read_batches` does."""
    return read_batches(run, table, schema_of(ROWS[table]).names)


def read_table(run: Path, row: type[Struct], table: str) -> pa.Table:
    """A whole table in memory, with the columns of the Struct `row`. Raises `InputError` as `read_batches` does."""
    schema = schema_of(row)
    return pa.Table.from_batches((batch.cast(schema) for batch in read_batches(run, table, schema.names)), schema=schema)


def read_rows(run: Path, row: type[Row], table: str) -> list[Row]:
    """A whole table in memory as Structs of the type `row`. Raises `InputError` as `read_batches` does."""
    return [msgspec.convert(each, row) for each in read_table(run, row, table).to_pylist()]


def read_file(file: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a part, or of a write-ahead file, or of the part that this has become since it was looked for."""
    with readable(file):
        if file.suffix != ".parquet":
            try:
                for batch in read_wal(file):
                    _check_label(file, batch.schema.metadata)
                    yield batch.select(list(columns))
                return
            except FileNotFoundError:
                file = file.with_name(f"part-{number_of(file):05}.parquet")
        with open_part(file) as part:
            for group in range(part.num_row_groups):
                yield from part.read_row_group(group, list(columns)).to_batches(BATCH_ROWS)
