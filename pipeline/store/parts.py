"""The files of one table: finished parts (Parquet) and write-ahead files, each of which says in its schema where it belongs.

    calls/part-00000.parquet    labelled RUN/calls/00000/0
    calls/part-00001.parquet    labelled RUN/calls/00001/0
    calls/wal-00002.arrows      labelled RUN/calls/00002/0, until it is part 2

Invariant: the numbers of a table begin at 0 and have no gap, and all of its files have one generation, which grows when the table is
replaced. So a file that is missing, that is there twice, or that comes from elsewhere is told without a list of the files, and
`table_files` refuses it. What becomes of the last file alone is told by the counts in `chains` (`store.check`).

Every part has a seal (`store.seal`), which is checked before a value of it is used.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.errors import InputError, reason
from pipeline.files import publish
from pipeline.store.columns import schema_of
from pipeline.store.events import ROWS
from pipeline.store.folder import folder_id
from pipeline.store.seal import DamagedPart, check_content, check_footer, seal
from pipeline.store.wal import wal_schema
from pipeline.system.machine import core_count

GROUP_ROWS = 8192
GROUP_BYTES = 16 << 20
"""A row group is written when it has this many rows, or bytes of Arrow arrays; at most that much is held in memory."""
PART_GROUPS = 8
"""A part is full after this many row groups."""
REMEDY = "put the files of the run back from a copy, or start a new run"

SHARDS = "shards"
"""The folder in a run folder with those of its shards, while a run on replicas is not finished; then its rows are there."""
_LABEL = b"pipeline.file"
_NAME = re.compile(r"part-(\d{5,})\.parquet|wal-(\d{5,})\.arrows")
_UNIQUE = ("_text", "_message", "request_id")
"""Endings of the names of columns whose strings hardly ever repeat; the other columns of strings are dictionary-encoded."""
_LOOKS = 3
"""How often a table is listed before it is refused: a live run may publish a part while its folder is being listed."""


class Label(Struct, frozen=True):
    """What a file of a table says of itself."""

    run: str
    """The id of the run folder, `RunFile.folder_id`."""
    table: str
    number: int
    """The number in the file's name."""
    generation: int
    """How often the table was replaced."""

    @classmethod
    def of(cls, metadata: Mapping[bytes, bytes] | None) -> "Label | None":
        """The label in the metadata of a schema; None where it has none."""
        try:
            run, table, number, generation = (metadata or {})[_LABEL].decode().split("/")
            return cls(run, table, int(number), int(generation))
        except (KeyError, ValueError):
            return None

    def put_on(self, schema: pa.Schema) -> pa.Schema:
        """`schema` with this label in its metadata."""
        text = f"{self.run}/{self.table}/{self.number:05}/{self.generation}"
        return schema.with_metadata({**(schema.metadata or {}), _LABEL: text.encode()})


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
        seal(self._draft)
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
            self._writer = pq.ParquetWriter(self._draft, self._schema, compression="zstd", use_dictionary=repeating)
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


def open_part(part: Path) -> pq.ParquetFile:
    """The Parquet file of a part of which nothing is damaged. Raises `OSError` or an Arrow error."""
    check_content(part)
    return pq.ParquetFile(part, pre_buffer=False)


def check_parts(parts: Sequence[Path]) -> None:
    """Read parts whole to see that nothing of them is damaged, each once in a process. Raises `InputError`."""

    def check(part: Path) -> None:
        with readable(part):
            check_content(part)

    with ThreadPoolExecutor(core_count()) as threads:
        list(threads.map(check, parts))


def shards_of(run: Path) -> list[Path]:
    """The folders of the shards in which the rows of a run on replicas are; none where they are in its own tables."""
    shards = [*(run / SHARDS).iterdir()] if (run / SHARDS).is_dir() else []
    return sorted(shards, key=lambda shard: int(shard.name))


def table_files(run: Path, table: str) -> list[Path]:
    """The files that hold the rows of a table, in the order of the rows: its parts, and each write-ahead file that is no part yet.
    Of a run on replicas these are the files of its shards.

    Raises `InputError` for a table that lacks a file, for a file that belongs elsewhere or has other columns, and where one
    cannot be read; so what is read of these files are rows of this run.
    """
    if shards := shards_of(run):
        return [file for shard in shards for file in table_files(shard, table)]
    for looks_left in reversed(range(_LOOKS)):
        try:
            return [file for file, _ in _checked_files(run, table)]
        except InputError:
            if not looks_left:
                raise
    raise AssertionError


def label_of_table(run: Path, table: str) -> Label:
    """The label of the next file of a table; raises `InputError` as `table_files` does."""
    files = _checked_files(run, table)
    labels = [label for _, label in files if label is not None]
    name = folder_id(run) or next((label.run for label in labels), "")
    return Label(name, table, len(files), labels[0].generation if labels else 0)


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn errors of reading `file` into an `InputError`."""
    try:
        yield
    except (pa.ArrowException, DamagedPart) as error:
        raise InputError(str(file), f"cannot be read: {reason(error)}; {REMEDY}") from error
    except OSError as error:
        raise InputError(str(file), f"cannot be read: {reason(error)}") from error
    except UnicodeEncodeError as error:
        raise InputError(str(file), "cannot be read: its path is not UTF-8; rename the folder") from error
    except UnicodeDecodeError as error:
        raise InputError(str(file), f"cannot be read: it is damaged, the names of its columns are not UTF-8; {REMEDY}") from error


def part_rows(part: Path) -> int:
    """The number of rows in a part, by its footer. Raises `OSError` or an Arrow error."""
    head = _read_head(part)
    return head.rows if head is not None else 0


def place_of(run: Path, table: str) -> Path:
    """The folder of a table; while it is being replaced, the one that it had."""
    former = run / f".{table}" / "former"
    return former if not (run / table).exists() and former.is_dir() else run / table


def number_of(name: str) -> int | None:
    """The number in the name of a part or write-ahead file; None for another name."""
    found = _NAME.fullmatch(name)
    return int(found[1] or found[2]) if found else None


def _checked_files(run: Path, table: str) -> list[tuple[Path, Label | None]]:
    place = place_of(run, table)
    with readable(run / table):
        if not os.path.lexists(place):
            return []
        names = sorted(entry.name for entry in os.scandir(place))
    # Parts sort before write-ahead files, and one that is both is a part: its write-ahead file was about to go.
    numbered: dict[int, Path] = {}
    for name in names:
        if (number := number_of(name)) is not None:
            numbered.setdefault(number, place / name)
    for number in range(len(numbered)):
        if number not in numbered:
            later = numbered[min(each for each in numbered if each > number)].name
            raise InputError(str(run / table), f"part-{number:05}.parquet is missing, and {later} is there; {REMEDY}")
    files = [(numbered[number], _checked_label(run, table, numbered[number])) for number in sorted(numbered)]
    generations = {label.generation for _, label in files if label is not None}
    if len(generations) > 1:
        raise InputError(str(run / table), f"has files from before and after the table was replaced; {REMEDY}")
    return files


def _checked_label(run: Path, table: str, file: Path) -> Label | None:
    """The label of a file that belongs where it is; None for a write-ahead file of which nothing is whole. Raises `InputError`."""
    with readable(file):
        head = _read_head(file)
    if head is None:
        return None
    label, flaw = head.label, head.flaw
    if label is None:
        flaw = "was written by another program"
    elif label.run != (folder_id(run) or label.run):
        flaw = "belongs to another run"
    elif (label.table, label.number) != (table, number_of(file.name)):
        flaw = f"holds what belongs in {label.table}/part-{label.number:05}.parquet"
    if flaw is not None:
        raise InputError(str(file), f"{flaw}; {REMEDY}")
    return label


class _Head(Struct, frozen=True):
    """What a file says at its start or end."""

    label: Label | None
    flaw: str | None
    """What is wrong with its columns, as a clause after its name."""
    rows: int
    """0 for a write-ahead file."""


def _read_head(file: Path) -> _Head | None:
    """The head of a file; None for a write-ahead file that has none."""
    about = os.stat(file)
    return _known_head(file, about.st_ino, about.st_size, about.st_mtime_ns)


@lru_cache(4096)
def _known_head(file: Path, inode: int, size: int, mtime_ns: int) -> _Head | None:
    rows = 0
    if file.suffix == ".parquet":
        check_footer(file)
        footer = pq.read_metadata(file)
        schema, rows = footer.schema.to_arrow_schema(), footer.num_rows
    elif (schema := wal_schema(file)) is None:
        return None
    label = Label.of(schema.metadata)
    return _Head(label, _column_flaw(schema, label.table if label else ""), rows)


def _column_flaw(schema: pa.Schema, table: str) -> str | None:
    """What is wrong with the columns of a file, as a clause after its name."""
    expected = _expected(table)
    if expected is None or schema.equals(expected):
        return None
    for field in expected:
        place = schema.get_field_index(field.name)
        if place < 0:
            return f"has no column `{field.name}`"
        if not schema.field(place).equals(field):
            return f"has a column `{field.name}` of the type {_type_name(schema.field(place))}, expected {_type_name(field)}"
    unknown = next(name for name in [*schema.names, "?"] if name not in expected.names)
    return f"has a column `{unknown}` too many, or columns in another order"


@cache
def _expected(table: str) -> pa.Schema | None:
    return schema_of(ROWS[table]) if table in ROWS else None


def _type_name(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"
