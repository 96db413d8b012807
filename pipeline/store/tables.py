"""A run folder open for appending: rows of `trace.events` enter, the tables `calls`, `steps` and `chains` leave.

A row is written to its table's write-ahead file at once and durable when `append` returns; meanwhile a part is filled, and
when the part is whole the write-ahead file goes. At every moment each row is in one of the two. A part is never read here,
a write-ahead file only after the process that wrote it is dead. Both are listed in the folder's `manifest`.
"""

import errno
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.errors import RunFolderError, reason
from pipeline.files import check_own_folder, create_own, publish, sync_folder
from pipeline.store.checking.inventory import complete_manifest, misplaced, open_manifest
from pipeline.store.columns import columns_of, schema_of
from pipeline.store.events import CallRow, ChainRow, StepRow
from pipeline.store.folder import check_still_held
from pipeline.store.manifest import Label, Manifest
from pipeline.store.wal import Wal, locked, read_wal

TABLES: dict[str, type[Struct]] = {"calls": CallRow, "steps": StepRow, "chains": ChainRow}
BATCH_ROWS = 512
"""Rows converted at a time, so that the interpreter's lock is held for about a millisecond a column."""
GROUP_ROWS = 8192
GROUP_BYTES = 16 << 20
"""A row group is written when it has this many rows, or bytes of Arrow arrays; at most that much is held in memory."""
PART_GROUPS = 8
"""A part is full after this many row groups."""

_UNIQUE = ("_text", "_message", "request_id")
"""Endings of the names of columns whose strings hardly ever repeat; the other columns of strings are dictionary-encoded."""


class TraceStore:
    """The tables of one run folder, by default calls, steps and chains, open for appending; parts of earlier sessions stay as they are.

    Not for use from two threads at once. Every method raises `RunFolderError` when the folder cannot be written.
    """

    def __init__(
        self, folder: Path, tables: Mapping[str, type[Struct]] = TABLES, sync_every_s: float = 0.0, run: str | None = None
    ) -> None:
        """With `sync_every_s` an `append` syncs its table only that many seconds after the last sync: for simulated time, in which
        a day's appends come within a minute. Rows that are not synced survive the end of the process, but not of the machine.
        A folder without a manifest gets one, of the files that are there; `run` gives a new folder's its name."""
        self.folder = folder
        with _as_folder_error(folder):
            self.manifest = complete_manifest(folder) if run is None else Manifest.new(folder, run)
        self._tables = {name: _Table(folder / name, schema_of(row), sync_every_s, self.manifest) for name, row in tables.items()}
        with _as_folder_error(folder):
            sync_folder(folder)
            sync_folder(folder.absolute().parent)

    def append(self, table: str, rows: Sequence[Struct]) -> None:
        """Append `rows` to `table` and make them durable; an append that fails leaves earlier rows durable."""
        check_still_held(self.folder)
        self._tables[table].append(rows)

    def append_batch(self, table: str, batch: pa.RecordBatch) -> None:
        """Append a batch with the columns of `table`, as `append` does rows."""
        check_still_held(self.folder)
        self._tables[table].append_batch(batch)

    def close(self) -> None:
        """Finish the parts of all tables; a table without parts gets an empty one. Tries every table, then raises the first error.

        The rows of a part that cannot be finished stay in the write-ahead file.
        """
        check_still_held(self.folder)
        errors = []
        for table in self._tables.values():
            try:
                table.close()
            except RunFolderError as error:
                errors.append(error)
        if errors:
            raise errors[0]


def recover(folder: Path) -> int:
    """Turn the write-ahead files that dead processes left in a run folder into parts; the number of bytes written.

    Files of a live process are left alone. May be interrupted and repeated. Raises `RunFolderError` when parts cannot be written.
    """
    with _as_folder_error(folder):
        manifest = open_manifest(folder)
    written = 0
    for table in TABLES:
        with _as_folder_error(folder / table):
            written += _recover(folder / table, manifest)
    return written


class _Table:
    """One table's folder: finished parts, and at most one unfinished part next to its write-ahead file."""

    def __init__(self, folder: Path, schema: pa.Schema, sync_every_s: float, manifest: Manifest) -> None:
        self._folder, self._schema, self._sync_every_s, self._manifest = folder, schema, sync_every_s, manifest
        self._wal: Wal | None = None
        self._part: Part | None = None
        self._synced = time.monotonic()
        self._closed = False
        with _as_folder_error(folder):
            check_own_folder(folder)
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(errno.EACCES, "not writable")
            _recover(folder, manifest)
            if any(folder.glob("wal-*.arrows")):
                raise RunFolderError(f"{folder}: another process is writing the trace; wait for its end")
            for unfinished in folder.glob("part-*.parquet.tmp"):
                unfinished.unlink()  # without a footer no one can read it
            self._number = 1 + max((int(part.name[5:10]) for part in folder.glob("part-[0-9][0-9][0-9][0-9][0-9].parquet")), default=-1)

    def append(self, rows: Sequence[Struct]) -> None:
        with _as_folder_error(self._folder):
            for start in range(0, len(rows), BATCH_ROWS):
                self._append_batch(columns_of(self._schema, rows[start : start + BATCH_ROWS]))
            self._sync()

    def append_batch(self, batch: pa.RecordBatch) -> None:
        with _as_folder_error(self._folder):
            self._append_batch(batch.replace_schema_metadata(self._schema.metadata))
            self._sync()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with _as_folder_error(self._folder):
            if self._wal and not self._part:  # its first batch failed
                self._manifest.strike(self._wal.path)
                self._wal.remove()
                self._wal = None
            if self._wal or not self._number:
                self._add_to_part(None)

    def _sync(self) -> None:
        if self._wal and time.monotonic() >= self._synced + self._sync_every_s:
            self._wal.sync()
            self._synced = time.monotonic()

    def _append_batch(self, batch: pa.RecordBatch) -> None:
        """Append to the write-ahead file, then to the part, so that at every moment each row is in one of the two."""
        self._wal = self._wal or self._new_wal()
        self._wal.append(batch)
        self._add_to_part(batch)

    def _new_wal(self) -> Wal:
        wal = Wal(self._folder / f"wal-{self._number:05}.arrows", self._labelled())
        try:
            self._manifest.list_wal(wal.path)
        except OSError:
            wal.remove()
            raise
        return wal

    def _labelled(self) -> pa.Schema:
        return Label(self._manifest.run, self._folder.name, self._number).put_on(self._schema)

    def _add_to_part(self, batch: pa.RecordBatch | None) -> None:
        """Add `batch` to the part, and finish the part when it is full or `batch` is None, which means that no more will come.

        A part that fails is deleted: its rows are in the write-ahead file, which stays; later rows go to the next part.
        """
        self._part = part = self._part or Part(self._folder / f"part-{self._number:05}.parquet", self._labelled())
        try:
            if batch is not None:
                part.add(batch)
            if part.full or batch is None:
                part.finish(self._manifest)
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


class Part:
    """A part that is being written, under a temporary name until it is finished. Methods raise `OSError` or an Arrow error."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path, self._schema = path, schema
        self._draft = path.with_name(f"{path.name}.tmp")
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._groups = 0
        self._written_rows = 0

    @property
    def full(self) -> bool:
        """Whether the part has all its row groups and is to be finished."""
        return self._groups >= PART_GROUPS

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch; a row group that is full then is written."""
        self._pending.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.get_total_buffer_size()
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write_group()

    def finish(self, manifest: Manifest | None = None) -> None:
        """Write the remaining rows, or an empty table where there were none, list the part, and give it its name, durably."""
        if self._pending or not self._groups:
            self._write_group()
        assert self._writer is not None
        self._writer.close()
        if manifest is not None:
            manifest.list_part(self.path, self._written_rows, self._draft)
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
            os.close(create_own(self._draft))
            self._writer = pq.ParquetWriter(
                self._draft, self._schema, compression="zstd", use_dictionary=repeating, write_page_checksum=True
            )
        self._writer.write_table(group, row_group_size=max(group.num_rows, 1))
        self._written_rows += group.num_rows
        self._groups += 1


def _recover(folder: Path, manifest: Manifest | None) -> int:
    written = 0
    for path in sorted(folder.glob("wal-*.arrows")):
        with suppress(FileNotFoundError, BlockingIOError), locked(path):
            if misplaced(path, manifest):
                continue  # nothing of it is to become rows of this run
            part = path.with_name(path.name.replace("wal-", "part-", 1)).with_suffix(".parquet")
            if not part.exists():
                written += _convert(path, part, manifest)
            path.unlink(missing_ok=True)
    return written


def _convert(path: Path, target: Path, manifest: Manifest | None) -> int:
    """Write all whole batches of the write-ahead file `path` as the part `target`; where it has none, write nothing. The part's size."""
    part: Part | None = None
    try:
        for batch in read_wal(path):
            part = part or Part(target, batch.schema)
            part.add(batch)
        if part:
            part.finish(manifest)
            return target.stat().st_size
        if manifest is not None:
            manifest.strike(path)
        return 0
    except BaseException:
        if part:
            part.drop()
        raise


@contextmanager
def _as_folder_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        for place in (folder, folder.parent):
            check_still_held(place)
        raise RunFolderError(f"{folder}: cannot write the trace: {reason(error)}") from error
