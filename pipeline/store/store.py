"""The tables of a run folder: rows are appended to write-ahead files, which become parts; both are read.

    calls/part-00000.parquet
    calls/part-00001.parquet
    calls/wal-00002.log         until it is part 2

A row is in a write-ahead file, durable, when `append` returns. A write-ahead file that is full, or that a dead process left, becomes the
part of its number and goes only then: at every moment each row is in one of the two. Making a part takes a second, so `make_parts` may work
in one thread while another appends.

The numbers of a table begin at 0 and have no gap, and the schema of a file names its run, so a file that is missing, or that comes from
another run, is noticed without a list of the files. The pages of a part have checksums, which are verified whenever pyarrow reads them.

Whoever writes holds the folder (`store.folder`). Readers write nothing and take no lock, so a run may continue meanwhile.
"""

import heapq
import math
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from itertools import chain, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.errors import InputError, RunFolderError, boundary, reason
from pipeline.files import new_file, sync_path
from pipeline.store.folder import FILE, PROBLEMS, folder_id
from pipeline.store.rows import ROWS, TABLES, columns_of, schema_of, with_values
from pipeline.store.wal import Wal, read_wal
from pipeline.system.machine import core_count

Add = Callable[[pa.RecordBatch], None]
Row = TypeVar("Row", bound=Struct)
PART_BYTES = 32 << 20
"""A write-ahead file becomes a part when it has this many bytes."""
GROUP_ROWS = 8192
GROUP_BYTES = 16 << 20
"""A row group is written when it has this many rows, or bytes of Arrow arrays; at most that much is held in memory."""
BATCH_ROWS = 1024
"""A batch of a part that is read has at most this many rows."""
ROWS_AT_ONCE = 512
"""Rows that `append` converts at a time, so that the interpreter's lock is held for about a millisecond a column."""
REMEDY = "put the files of the run back from a copy, or start a new run"

KEPT = "problems"
REPLICA = "replica"
SHARDS = "shards"
"""The folder in a run folder that holds its shards while a run on replicas is not finished; its rows are there until then."""
_RUN = b"pipeline.run"
"""The key of the run's `folder_id` in the metadata of a schema."""
_NAME = re.compile(r"(?:part|wal)-(\d{5,})\.(?:parquet|log)")
_UNIQUE = ("_text", "_message", "request_id")
"""Endings of the names of columns whose strings hardly ever repeat; the other columns of strings are dictionary-encoded."""


class RunStore:
    """The tables of one run folder, by default those that a run writes; parts of earlier sessions stay as they are.

    Not for use from two threads at once, `make_parts` apart. Every method raises `RunFolderError` when the folder cannot be written, and
    `InputError` where its files are not those of the run.
    """

    def __init__(self, folder: Path, tables: Iterable[str] = TABLES, sync_every_s: float = 0.0) -> None:
        """With `sync_every_s` an `append` syncs only that many seconds after the last sync: for simulated time, in which
        a day's appends come within a minute. Rows that are not synced survive the end of the process, but not of the machine."""
        self.folder, self.id = folder, folder_id(folder) if (folder / FILE).exists() else new_folder_id()
        """`id`: from `run.json`; a new one where there is none."""
        self._names, self._sync_every_s = tuple(tables), sync_every_s
        self._tables: dict[str, _Table] = {}
        self._making_parts = threading.Lock()

    def open(self) -> None:
        """Open the tables for appending, recovering them first; the first `append` does so otherwise."""
        if self._tables:
            return
        self.recover()
        with _written(self.folder):
            for table in self._names:
                (self.folder / table).mkdir(parents=True, exist_ok=True)
                self._tables[table] = _Table(number=len(own_files(self.folder, table)))
            sync_path(self.folder)
            sync_path(self.folder.absolute().parent)

    def append(self, table: str, rows: Sequence[Struct]) -> None:
        """Append `rows` to `table` and make them durable; an append that fails leaves earlier rows durable."""
        self.open()
        into = self._tables[table]
        with _written(self.folder / table):
            for start in range(0, len(rows), ROWS_AT_ONCE):
                into.wal = into.wal or Wal(self._path(table, into.number, "wal"), self._schema(table))
                into.wal.append(columns_of(schema_of(ROWS[table]), rows[start : start + ROWS_AT_ONCE]))
                if into.wal.size >= PART_BYTES:
                    self._sync(table)
                    into.end()
            if into.wal and time.monotonic() >= into.wal.synced + self._sync_every_s:
                self._sync(table)

    def make_parts(self) -> None:
        """Make parts of the write-ahead files that are full."""
        for table, each in self._tables.items():
            self._make_parts(table, each.number)

    def close(self) -> None:
        """Make the rows of all tables parts; a table without parts gets an empty one. A second call does nothing.

        The rows of a part that cannot be written stay in the write-ahead file.
        """
        self.open()
        for table, each in self._tables.items():
            with _written(self.folder / table):
                each.end()
                self._make_parts(table, each.number)
                if not each.number:
                    with self._new_part(table, 0):
                        each.number = 1

    def recover(self) -> None:
        """Turn the write-ahead files that dead processes left into parts.

        A torn end of a write-ahead file goes. May be interrupted and repeated.
        """
        for table in ROWS:
            with _written(self.folder / table):
                for draft in (self.folder / table).glob(".*.tmp"):
                    draft.unlink()
            self._make_parts(table)

    def rewrite(self, table: str, change: Callable[[pa.Table], pa.Table]) -> None:
        """Replace each part for whose rows `change` gives others. Write-ahead files must have become parts."""
        for part in own_files(self.folder, table):
            with readable(part), open_part(part) as file:
                rows = file.read()
            changed = change(rows)
            if not changed.equals(rows):
                write_part(part, changed)

    @contextmanager
    def rewards(self) -> Iterator[Callable[[Sequence[Struct]], None]]:
        """Write the table `rewards` anew, as one part: yields what adds rows. Unless the body ends well an earlier table stays."""
        with self._new_part("rewards", 0) as add:
            yield lambda rows: add(columns_of(self._schema("rewards"), rows))

    def merge(self, folders: Sequence[Path], run_id: str, *, replicas: bool = False) -> None:
        """Write every table that all of the run folders have into this one as rows of the run `run_id`. What a merge left here that was
        cut short goes.

        Rows keep everything but the name of their run and, with `replicas`, the number of the folder as their `replica`. Problems come in
        the order of the input, all else folder after folder.
        """
        for table in ROWS:
            shutil.rmtree(self.folder / table, ignore_errors=True)
            if table == KEPT or not all(table_files(folder, table) for folder in folders):
                continue
            names = schema_of(ROWS[table]).names
            files = [(replica, file) for replica, folder in enumerate(folders) for file in table_files(folder, table)]
            for number, (replica, file) in enumerate(files):
                with self._new_part(table, number) as add:
                    for batch in read_file(file, names):
                        named = with_values(batch, "run_id", [run_id] * batch.num_rows)
                        add(with_values(named, REPLICA, [replica] * batch.num_rows) if replicas and REPLICA in names else named)
        if not (self.folder / PROBLEMS).exists():
            problems = (map(pa.RecordBatch.to_pylist, read_batches(folder, KEPT)) for folder in folders)
            rows = heapq.merge(*map(chain.from_iterable, problems), key=itemgetter("input_row"))
            with new_part(self.folder / PROBLEMS, schema_of(ROWS[KEPT])) as add:
                while some := list(islice(rows, ROWS_AT_ONCE)):
                    add(pa.RecordBatch.from_pylist(some, schema_of(ROWS[KEPT])))

    def _sync(self, last: str) -> None:
        """Sync the tables that the rows of the table `last` rest on, then `last`: a loss of power leaves no chain without its calls."""
        for table in self._names[: self._names.index(last) + 1]:
            if (wal := self._tables[table].wal) is not None:
                with _written(self.folder / table):
                    wal.sync()

    def _make_parts(self, table: str, before: float = math.inf) -> None:
        """Make the write-ahead files with numbers less than `before` parts, unless they are already."""
        with self._making_parts, _written(place := self.folder / table):
            for wal in sorted(place.glob("wal-*.log")):
                if (number := number_of(wal)) >= before:
                    return
                if not self._path(table, number, "part").exists():
                    with self._new_part(table, number) as add:
                        for batch in read_file(wal, schema_of(ROWS[table]).names):
                            add(batch)
                wal.unlink()

    def _new_part(self, table: str, number: int) -> AbstractContextManager[Add]:
        return new_part(self._path(table, number, "part"), self._schema(table))

    def _path(self, table: str, number: int, kind: str) -> Path:
        return self.folder / table / f"{kind}-{number:05}.{'log' if kind == 'wal' else 'parquet'}"

    def _schema(self, table: str) -> pa.Schema:
        return labelled(schema_of(ROWS[table]), self.id)


class _Table(Struct):
    """A table to which rows are appended."""

    number: int
    """Of the write-ahead file, or of the next one."""
    wal: Wal | None = None

    def end(self) -> None:
        """Close the write-ahead file. Also where that fails, the file stays and has its number."""
        if self.wal is not None:
            wal, self.wal, self.number = self.wal, None, self.number + 1
            wal.close()


def new_folder_id() -> str:
    """A random name for a run folder."""
    return secrets.token_hex(8)


def _written(place: Path) -> AbstractContextManager[None]:
    return boundary(RunFolderError, f"{place}: cannot be written", foreign=(OSError, pa.ArrowException))


@contextmanager
def new_part(path: Path, schema: pa.Schema) -> Iterator[Add]:
    """Write a part: yields what adds a batch to it. It gets its name, durably, when the body ends well; else there is none.

    Raises `RunFolderError`.
    """
    repeating = [field.name for field in schema if pa.types.is_string(field.type) and not field.name.endswith(_UNIQUE)]
    how: dict[str, Any] = {"compression": "zstd", "use_dictionary": repeating, "write_page_checksum": True}
    pending: list[pa.RecordBatch] = []
    rows = size = 0

    def add(batch: pa.RecordBatch) -> None:
        nonlocal rows, size
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            write_group()

    def write_group() -> None:
        nonlocal rows, size
        writer.write_table(pa.Table.from_batches(pending, schema))
        pending.clear()
        rows = size = 0

    with _written(path):
        path.parent.mkdir(exist_ok=True)
        with new_file(path) as draft, pq.ParquetWriter(draft, schema, **how) as writer:
            yield add
            if pending:
                write_group()


def write_part(path: Path, rows: pa.Table) -> None:
    """Write a part of `rows`, whose schema names its run, over any of its name. Raises `RunFolderError`."""
    with new_part(path, rows.schema) as add:
        for batch in rows.to_batches(GROUP_ROWS):
            add(batch)


def labelled(schema: pa.Schema, run: str) -> pa.Schema:
    """`schema` with the `folder_id` of a run in its metadata."""
    return schema.with_metadata({_RUN: run.encode()})


def number_of(file: Path) -> int:
    """The number in the name of a part or write-ahead file; -1 for another name."""
    found = _NAME.fullmatch(file.name)
    return int(found[1]) if found else -1


def _check_run(file: Path, schema: pa.Schema) -> None:
    """Raise `InputError` for a file of a table that is not of the run in whose folder it is."""
    if (schema.metadata or {}).get(_RUN, b"").decode() != folder_id(file.parent.parent):
        raise InputError(str(file), f"is not of this run; {REMEDY}")


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
        files = sorted(place.iterdir(), reverse=True) if place.exists() else []
    # Of a part and a write-ahead file of one number the part counts: the write-ahead file was about to go.
    numbered = {number_of(file): file for file in files if number_of(file) >= 0}
    for expected, number in enumerate(sorted(numbered)):
        if number != expected:
            raise InputError(str(place), f"part-{expected:05}.parquet is missing, and {numbered[number].name} is there; {REMEDY}")
    return [numbered[number] for number in sorted(numbered)]


def check_parts(parts: Sequence[Path], columns: Sequence[str] = ()) -> None:
    """Verify the runs of parts and the checksums of these columns, each once in a process. Raises `InputError`."""

    def check(part: Path) -> None:
        with readable(part):
            _check_once(part, os.stat(part).st_mtime_ns, tuple(columns))

    with ThreadPoolExecutor(core_count()) as threads:
        list(threads.map(check, parts))


@lru_cache(1 << 14)
def _check_once(part: Path, mtime_ns: int, columns: tuple[str, ...]) -> None:
    with open_part(part) as file:
        if columns:  # without any it reads all
            file.scan_contents([*columns], BATCH_ROWS)


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
        if part.name != PROBLEMS:
            _check_run(part, file.schema_arrow)
        yield file


def read_file(file: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a part, or of a write-ahead file, or of the part that this has become since it was looked for."""
    with readable(file):
        if file.suffix != ".parquet":
            try:
                for batch in read_wal(file):
                    _check_run(file, batch.schema)
                    yield batch.select(list(columns))
                return
            except FileNotFoundError:
                file = file.with_name(f"part-{number_of(file):05}.parquet")
        with open_part(file) as part:
            for group in range(part.num_row_groups):
                yield from part.read_row_group(group, list(columns)).to_batches(BATCH_ROWS)


def count_rows(run: Path, table: str) -> int:
    """The number of rows of a table. Raises `InputError` as `read_batches` does."""
    return sum(batch.num_rows for file in table_files(run, table) for batch in read_file(file, ()))


def read_batches(run: Path, table: str, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Record batches of the `columns` of a table, by default of all, in the order in which its rows were written.

    A run that was cut short may have no rows. Raises `InputError` where the files are not those of the run, or cannot be read.
    """
    names = columns or schema_of(ROWS[table]).names
    return (batch for file in table_files(run, table) for batch in read_file(file, names))


def read_rows(run: Path, row: type[Row], table: str) -> list[Row]:
    """A whole table in memory as Structs of the type `row`. Raises `InputError` as `read_batches` does."""
    return [msgspec.convert(each, row) for each in read_table(run, table).to_pylist()]


def read_table(run: Path, table: str) -> pa.Table:
    """A whole table in memory. Raises `InputError` as `read_batches` does."""
    schema = schema_of(ROWS[table])
    return pa.Table.from_batches((batch.cast(schema) for batch in read_batches(run, table)), schema=schema)
