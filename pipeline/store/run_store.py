"""A run folder open for its rows: `append` writes them, `recover` finishes what a dead process began, `replace` writes a table anew.

A row is written to its table's write-ahead file at once and durable when `append` returns; meanwhile a part is filled, and
when the part is whole the write-ahead file goes. At every moment each row is in one of the two. Whoever writes holds the folder
(`store.folder`), so a write-ahead file that is there when a store is opened is of a process that has died.
"""

import errno
import heapq
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from pipeline.errors import RunFolderError, boundary, reason
from pipeline.files import sync_folder
from pipeline.store.columns import columns_of, schema_of, with_values
from pipeline.store.events import ROWS, TABLES
from pipeline.store.folder import PROBLEMS, folder_id
from pipeline.store.parts import (
    KEPT,
    Part,
    check_parts,
    labelled,
    open_part,
    own_files,
    read_batches,
    read_file,
    readable,
    table_files,
    write_part,
)
from pipeline.store.wal import Wal

BATCH_ROWS = 512
"""Rows converted at a time, so that the interpreter's lock is held for about a millisecond a column."""
REPLICA = "replica"


class RunStore:
    """The tables of one run folder, by default those that a run writes; parts of earlier sessions stay as they are.

    Not for use from two threads at once. Every method raises `RunFolderError` when the folder cannot be written, and `InputError`
    where its files are not those of the run.
    """

    def __init__(self, folder: Path, tables: Mapping[str, type[Struct]] = TABLES, sync_every_s: float = 0.0) -> None:
        """With `sync_every_s` an `append` syncs its table only that many seconds after the last sync: for simulated time, in which
        a day's appends come within a minute. Rows that are not synced survive the end of the process, but not of the machine. If it is
        infinite there are no write-ahead files, and what was appended is there after `close`."""
        self.folder, self.id = folder, folder_id(folder) or new_folder_id()
        """`id`: the random name of the folder, by `run.json`; a new one where there is none."""
        self._rows, self._sync_every_s = tables, sync_every_s
        self._tables: dict[str, TableWriter] = {}

    def open(self) -> None:
        """Open the tables for appending, recovering them first; the first `append` does so otherwise."""
        if self._tables:
            return
        with _as_folder_error(self.folder):
            self.recover()
            for table, row in self._rows.items():
                number = len(own_files(self.folder, table))
                self._tables[table] = TableWriter(self.folder / table, schema_of(row), self.id, number, self._sync_every_s)
            sync_folder(self.folder)
            sync_folder(self.folder.absolute().parent)

    def append(self, table: str, rows: Sequence[Struct]) -> None:
        """Append `rows` to `table` and make them durable; an append that fails leaves earlier rows durable."""
        self.open()
        self._tables[table].append(rows)

    def append_batch(self, table: str, batch: pa.RecordBatch) -> None:
        """Append a batch with the columns of `table`, as `append` does rows."""
        self.open()
        self._tables[table].append_batch(batch)

    def close(self) -> None:
        """Finish the parts of all tables; a table without parts gets an empty one. Tries every table, then raises the first error.

        The rows of a part that cannot be finished stay in the write-ahead file.
        """
        self.open()
        errors = []
        for table in self._tables.values():
            try:
                table.close()
            except RunFolderError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def recover(self) -> int:
        """Turn the write-ahead files that dead processes left into parts, and finish or undo the replacement of a table; the number of
        bytes written.

        A torn end of a write-ahead file goes. Damaged parts are refused. May be interrupted and repeated.
        """
        written = 0
        for table in ROWS:
            with _as_folder_error(self.folder / table):
                _settle(self.folder, table)
                files = own_files(self.folder, table)
                check_parts([file for file in files if file.suffix == ".parquet"])
                written += sum(map(_recovered, sorted((self.folder / table).glob("wal-*.arrows"))))
        return written

    @contextmanager
    def replace(self, table: str) -> Iterator["TableWriter"]:
        """Write a whole `table` anew: yields what takes its rows.

        When the body ends well the rows replace the old table; however else it ends, the old table stays.
        """
        draft = self.folder / f".{table}"
        with _as_folder_error(self.folder / table):
            _settle(self.folder, table)
        new = TableWriter(draft / table, schema_of(ROWS[table]), self.id, 0, sync_every_s=math.inf)
        try:
            yield new
            new.close()
            with _as_folder_error(self.folder / table):
                if (self.folder / table).exists():
                    os.replace(self.folder / table, draft / "former")
                os.replace(draft / table, self.folder / table)
                sync_folder(self.folder)
        finally:
            with suppress(RunFolderError):
                new.close()
            shutil.rmtree(draft, ignore_errors=True)

    def remove(self, table: str, columns: Sequence[str], gone: Callable[[pa.Table], Sequence[bool]]) -> int:
        """Remove the rows for which `gone`, called with the `columns` of one part after the other, is true.

        A part is replaced whole, the others are not written; the number of bytes of those that are. Write-ahead files must have become
        parts before.
        """
        written = 0
        for part in own_files(self.folder, table):
            with readable(part), open_part(part) as file:
                leave = gone(file.read(list(columns)))
                content = file.read() if any(leave) else None
            if content is not None:
                with boundary(RunFolderError, f"{part}: cannot be written", foreign=(OSError, pa.ArrowException)):
                    write_part(part, content.filter(pc.invert(pa.array(leave, pa.bool_()))))
                written += part.stat().st_size
        return written

    def merge(self, folders: Sequence[Path], run_id: str, *, replicas: bool = False) -> None:
        """Write every table that all of the run folders have into this one as rows of the run `run_id`. What a merge left here that was
        cut short goes.

        Rows keep everything but the name of their run and, with `replicas`, the number of the folder as their `replica`. Problems come in
        the order of the input, all else folder after folder.
        """
        for table in ROWS:
            shutil.rmtree(self.folder / table, ignore_errors=True)
        self._rows = {table: row for table, row in ROWS.items() if table != KEPT and all(table_files(folder, table) for folder in folders)}
        self._sync_every_s = math.inf
        if not (self.folder / PROBLEMS).exists():
            write_part(self.folder / PROBLEMS, pa.Table.from_batches(_in_order(folders), schema_of(ROWS[KEPT])))
        try:
            for table in self._rows:
                for batch in _one_by_one(folders, table, run_id, replicas):
                    self.append_batch(table, batch)
        finally:
            self.close()


def new_folder_id() -> str:
    """A random name for a run folder."""
    return secrets.token_hex(8)


class TableWriter:
    """Writes one table: finished parts, and at most one unfinished part next to its write-ahead file."""

    def __init__(self, folder: Path, schema: pa.Schema, run_id: str, number: int, sync_every_s: float) -> None:
        """`number`: of the next file."""
        self._folder, self._schema, self._run_id, self._number, self._sync_every_s = folder, schema, run_id, number, sync_every_s
        self._wal: Wal | None = None
        self._part: Part | None = None
        self._synced = time.monotonic()
        self._closed = False
        with _as_folder_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(errno.EACCES, "not writable")
            for unfinished in folder.glob("part-*.parquet.tmp"):
                unfinished.unlink()  # without a footer no one can read it

    def append(self, rows: Sequence[Struct]) -> None:
        """Append rows, as `RunStore.append` does."""
        with _as_folder_error(self._folder):
            for start in range(0, len(rows), BATCH_ROWS):
                self._append_batch(columns_of(self._schema, rows[start : start + BATCH_ROWS]))
            self._sync()

    def append_batch(self, batch: pa.RecordBatch) -> None:
        """Append a batch with the columns of the table."""
        with _as_folder_error(self._folder):
            self._append_batch(batch.replace_schema_metadata(self._schema.metadata))
            self._sync()

    def close(self) -> None:
        """Finish the last part; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        with _as_folder_error(self._folder):
            if self._wal and not self._part:  # its first batch failed
                self._wal.remove()
                self._wal = None
            if self._wal or self._part or not self._number:
                self._add_to_part(None)

    def _sync(self) -> None:
        if self._wal and time.monotonic() >= self._synced + self._sync_every_s:
            self._wal.sync()
            self._synced = time.monotonic()

    def _append_batch(self, batch: pa.RecordBatch) -> None:
        """Append to the write-ahead file, then to the part, so that at every moment each row is in one of the two."""
        if self._sync_every_s < math.inf:
            self._wal = self._wal or Wal(self._folder / f"wal-{self._number:05}.arrows", self._labelled())
            self._wal.append(batch)
        self._add_to_part(batch)

    def _add_to_part(self, batch: pa.RecordBatch | None) -> None:
        """Add `batch` to the part, and finish the part when it is full or `batch` is None, which means that no more will come.

        A part that fails is deleted: its rows are in the write-ahead file, which stays; later rows go to the next part.
        """
        if self._part is None:
            self._part = Part(self._folder / f"part-{self._number:05}.parquet", self._labelled())
        part = self._part
        try:
            if batch is not None:
                part.add(batch)
            if part.full or batch is None:
                part.finish()
                self._close_part(keep=False)
        except BaseException:
            part.drop()
            with suppress(OSError):
                self._close_part(keep=True)
            raise

    def _close_part(self, keep: bool) -> None:
        """After a part is finished or deleted: continue with the next number, and `keep` the write-ahead file or remove it."""
        wal, self._wal, self._part = self._wal, None, None
        self._number += 1
        if wal and keep:
            wal.close()
        elif wal:
            wal.remove()

    def _labelled(self) -> pa.Schema:
        return labelled(self._schema, self._run_id, self._folder.name, self._number)


def _settle(folder: Path, table: str) -> None:
    """Finish the replacement of a table by a process that died in it: forwards where the new table was whole, else backwards."""
    draft = folder / f".{table}"
    if (draft / "former").exists() and not (folder / table).exists():
        os.replace(draft / table, folder / table)
        sync_folder(folder)
    shutil.rmtree(draft, ignore_errors=True)


def _recovered(path: Path) -> int:
    """Make the whole batches of a write-ahead file a part, unless they are one already or there are none; its size."""
    target, part, written = path.with_name(f"part-{path.stem[4:]}.parquet"), None, 0
    try:
        for batch in () if target.exists() else read_file(path, schema_of(ROWS[path.parent.name]).names):
            part = part or Part(target, batch.schema)
            part.add(batch)
        if part is not None:
            part.finish()
            written = target.stat().st_size
    except BaseException:
        if part is not None:
            part.drop()
        raise
    path.unlink()
    return written


def _one_by_one(folders: Sequence[Path], table: str, run_id: str, replicas: bool) -> Iterator[pa.RecordBatch]:
    names = schema_of(ROWS[table]).names
    for number, folder in enumerate(folders):
        for batch in read_batches(folder, table, names):
            named = with_values(batch, "run_id", [run_id] * batch.num_rows)
            yield with_values(named, REPLICA, [number] * batch.num_rows) if replicas and REPLICA in names else named


def _in_order(folders: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    """The kept problems of all folders, in the order of the input, in which each folder has its own."""
    schema, waiting = schema_of(ROWS[KEPT]), list[dict[str, Any]]()
    for row in heapq.merge(*(_kept_rows(folder, schema) for folder in folders), key=itemgetter("input_row")):
        waiting.append(row)
        if len(waiting) == BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(waiting, schema)
            waiting = []
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, schema)


def _kept_rows(folder: Path, schema: pa.Schema) -> Iterator[dict[str, Any]]:
    for batch in read_batches(folder, KEPT, schema.names):
        yield from batch.to_pylist()


@contextmanager
def _as_folder_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{folder}: cannot write the trace: {reason(error)}") from error
