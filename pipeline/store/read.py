"""Reading the tables of a run folder: finished parts, then the write-ahead files of a run that is in progress or was killed.

Nothing is written and no lock is taken, so a run may continue meanwhile.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct, structs

from pipeline.errors import InputError, reason
from pipeline.files import check_own_folder
from pipeline.store.checking.inventory import our_files
from pipeline.store.columns import schema_of
from pipeline.store.conform import conformed
from pipeline.store.part_file import open_part, read_footer
from pipeline.store.wal import read_wal

Row = TypeVar("Row", bound=Struct)
Value = Callable[[int], Any]
"""Finds the value of a column by the index of the row."""
BATCH_ROWS = 8192
BATCH_BYTES = 4 << 20
"""A batch of a part has at most this many rows (`BATCH_ROWS`), and about as many bytes (`BATCH_BYTES`) at most; batches of write-ahead
files are joined until they have one or the other."""
GROUPS, PIECE_BYTES = 8, 16 << 20
"""How many row groups `read_backwards` reads together: as many as a full part has, or fewer, which have about as many bytes at most."""


def check_folder(run: Path) -> None:
    """Raise `InputError` unless `run` is a folder."""
    if not run.is_dir():
        what = "not a directory" if run.exists() else "no such directory"
        raise InputError(str(run), f"{what}; expected a run folder")


def read_batches(run: Path, table: str, columns: Sequence[str], maybe: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Record batches of a table in the order in which its rows were written, a few thousand rows each.

    They have `columns`, and those of the columns `maybe`, which earlier versions did not write, that the file has. A run that
    was cut short may have no rows. Raises `InputError` for a file that cannot be read, lacks a column, or has one that `conformed` refuses.
    """
    for file in files(run, table):
        with readable(file):
            yield from read_file(file, columns, maybe)


def read_table(run: Path, row: type[Struct], table: str) -> pa.Table:
    """A whole table in memory, with the columns of the Struct `row`; those with a default that earlier versions did not write are null.

    Raises `InputError` as `read_batches` does.
    """
    return pa.Table.from_batches(read_whole(run, row, table), schema=schema_of(row))


def read_whole(run: Path, row: type[Struct], table: str) -> Iterator[pa.RecordBatch]:
    """The batches of `read_table`, which need not be in memory together."""
    schema, later = schema_of(row), {field.name for field in structs.fields(row) if not field.required}
    for batch in read_batches(run, table, [name for name in schema.names if name not in later], sorted(later)):
        yield _with_all(batch, schema)


def read_rows(run: Path, row: type[Row], table: str) -> list[Row]:
    """A whole table in memory as Structs of the type `row`. Raises `InputError` as `read_batches` does."""
    return [msgspec.convert(each, row) for each in read_table(run, row, table).to_pylist()]


def read_file(file: Path, columns: Sequence[str], maybe: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Record batches of one of a table's `files`, as `read_batches` gives them; foreign errors are left to `readable`."""
    found = _part_batches if file.suffix == ".parquet" else _wal_batches
    for batch in found(file, columns, maybe):
        yield conformed(batch, file)


def read_backwards(
    run: Path, table: str, columns: Sequence[str], encoded: Sequence[str] = (), maybe: Sequence[str] = ()
) -> Iterator[pa.Table]:
    """The `columns` of a table, and those of `maybe` that it has, in pieces of some ten thousand rows: the last piece first, the rows
    within a piece in written order.

    Strings of the columns `encoded` come as Arrow dictionaries, which is faster. Raises `InputError` as `read_batches` does.
    """
    for file in reversed(files(run, table)):
        with readable(file):
            for piece in _pieces_backwards(file, columns, encoded, maybe):
                yield conformed(piece, file, encoded)


def files(run: Path, table: str) -> list[Path]:
    """The files that hold a table's rows, in order: its parts, and each write-ahead file that is no part yet.

    None where its folder is not there. Files of other runs and second copies are left out; `inventory.flaws` names them. Raises
    `InputError` for a link or a pipe, and where the folder cannot be read.
    """
    with readable(run / table), suppress(FileNotFoundError):
        check_own_folder(run / table)
        os.scandir(run / table).close()  # which says why it cannot be read: a listing then finds nothing
    return our_files(run, table)


def count_rows(run: Path, table: str) -> int:
    """The number of rows in the finished parts of a table, from their footers; parts that cannot be read are not counted."""
    rows = 0
    for file in files(run, table):
        with suppress(OSError, pa.ArrowException):
            rows += read_footer(file).num_rows if file.suffix == ".parquet" else 0
    return rows


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """Turn errors of reading `file` into an `InputError`."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise InputError(str(file), f"cannot be read: {reason(error)}") from error
    except UnicodeEncodeError as error:
        raise InputError(str(file), "cannot be read: its path is not UTF-8; rename the folder") from error
    except UnicodeDecodeError as error:
        raise InputError(str(file), "cannot be read: it is damaged, the names of its columns are not UTF-8") from error


def _pieces_backwards(file: Path, columns: Sequence[str], encoded: Sequence[str], maybe: Sequence[str]) -> Iterator[pa.Table]:
    if file.suffix == ".parquet":
        yield from _part_tables(file, columns, encoded, maybe)
    else:
        yield from reversed([pa.Table.from_batches([batch]) for batch in _wal_batches(file, columns, maybe)])


def _part_batches(part: Path, columns: Sequence[str], maybe: Sequence[str]) -> Iterator[pa.RecordBatch]:
    # Without a buffer: Arrow would make it as large as a damaged file says that a page is, up to 2 GiB.
    with open_part(part, pre_buffer=False) as file:
        present = _present(part, file.schema_arrow, columns, maybe)
        yield from file.iter_batches(_batch_rows(file.metadata, present), columns=present)


def _batch_rows(footer: pq.FileMetaData, names: Sequence[str]) -> int:
    """How many rows a batch of these columns has: fewer than `BATCH_ROWS` where a row group says that they have too many bytes."""
    rows = BATCH_ROWS
    for number, size in enumerate(_group_bytes(footer, names)):
        if group_rows := footer.row_group(number).num_rows:
            rows = min(rows, BATCH_BYTES * group_rows // max(size, 1))
    return max(rows, 1)


def _group_bytes(footer: pq.FileMetaData, names: Sequence[str]) -> list[int]:
    """The bytes of these columns in each row group."""
    places = [place for place in range(footer.num_columns) if footer.schema.column(place).path.partition(".")[0] in names]
    groups = map(footer.row_group, range(footer.num_row_groups))
    return [sum(group.column(place).total_uncompressed_size for place in places) for group in groups]


def _groups_backwards(sizes: Sequence[int]) -> Iterator[range]:
    """Row groups of these `sizes` that are read together, the last ones first."""
    end = len(sizes)
    while end:
        start = end - 1
        while start and end - start < GROUPS and sum(sizes[start - 1 : end]) <= PIECE_BYTES:
            start -= 1
        yield range(start, end)
        end = start


def _part_tables(part: Path, columns: Sequence[str], encoded: Sequence[str], maybe: Sequence[str]) -> Iterator[pa.Table]:
    with pa.OSFile(str(part)) as source:
        metadata = open_part(source).metadata
        there = {metadata.schema.column(place).path for place in range(metadata.num_columns)}  # others cannot be read as dictionaries
        file = open_part(source, metadata=metadata, read_dictionary=[name for name in encoded if name in there], pre_buffer=False)
        names = _present(part, file.schema_arrow, columns, maybe)
        for groups in _groups_backwards(_group_bytes(metadata, names)):
            yield file.read_row_groups(groups, columns=names)


def _wal_batches(path: Path, columns: Sequence[str], maybe: Sequence[str]) -> Iterator[pa.RecordBatch]:
    batches = read_wal(path)
    try:
        first = next(batches, None)
    except FileNotFoundError:  # it has become a part since it was looked for
        yield from _part_batches(path.with_name(f"part-{path.stem[4:]}.parquet"), columns, maybe)
        return
    if first is not None:
        names = _present(path, first.schema, columns, maybe)
        yield from (batch.select(names) for batch in _joined(first, batches))


def with_lengths(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """`batch` with the lengths of the texts whose token ids are in the column `name` in their place."""
    ids = batch.column(name)
    lengths = pc.list_value_length(ids)
    if pa.types.is_list(ids.type.value_type):
        places = np.concatenate([[0], np.cumsum(lengths.to_numpy())]).astype(np.int32)
        lengths = pa.ListArray.from_arrays(pa.array(places), pc.list_value_length(pc.list_flatten(ids)))
    return batch.set_column(batch.schema.names.index(name), name, lengths)


def _with_all(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """`batch` with the columns of `schema`, null where it lacks them."""
    there = set(batch.schema.names)
    columns = [batch.column(field.name).cast(field.type) if field.name in there else pa.nulls(len(batch), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _joined(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    pending, rows, size = [first], first.num_rows, first.nbytes
    for batch in others:
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield pa.concat_batches(pending)
            pending, rows, size = [], 0, 0
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    yield pa.concat_batches(pending)


def _present(file: Path, schema: pa.Schema, columns: Sequence[str], maybe: Sequence[str]) -> list[str]:
    if missing := set(columns) - set(schema.names):
        names = ", ".join(f"`{name}`" for name in sorted(missing))
        raise InputError(str(file), f"has no column {names}; it may have been written by another version")
    return [*columns, *(name for name in maybe if name in schema.names)]


class RowGroups:
    """Random access to the row groups of one table, numbered from 0 in written order.

    Raises `InputError` for a file that cannot be read or lacks one of the `columns`.
    """

    def __init__(self, run: Path, table: str, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._groups: list[tuple[Path, int] | pa.RecordBatch] = []
        for file in files(run, table):
            with readable(file):
                self._add(file)

    def __len__(self) -> int:
        return len(self._groups)

    def read(self, number: int, columns: Sequence[str]) -> dict[str, Value]:
        """The values of `columns` in the row group `number`, each by the index of the row in the group."""
        batch = self._batch(number, list(columns))
        return {name: value_of(batch.column(name)) for name in columns}

    def column(self, number: int, name: str) -> list[Any]:
        """All values of the column `name` in the row group `number`."""
        found: list[Any] = self._batch(number, [name]).column(name).to_pylist()
        return found

    def _add(self, file: Path) -> None:
        if file.suffix != ".parquet":
            self._groups += read_file(file, self._columns)
            return
        with open_part(file) as part:
            if missing := set(self._columns) - set(part.schema_arrow.names):
                raise InputError(str(file), f"has no column {', '.join(f'`{name}`' for name in sorted(missing))}")
            self._groups += [(file, number) for number in range(part.num_row_groups) if part.metadata.row_group(number).num_rows]

    def _batch(self, number: int, columns: list[str]) -> pa.RecordBatch:
        group = self._groups[number]
        if isinstance(group, pa.RecordBatch):
            return group.select(columns)
        file, place = group
        with readable(file), open_part(file, pre_buffer=False) as part:
            return conformed(part.read_row_group(place, columns), file).combine_chunks().to_batches()[0]


def value_of(column: pa.Array) -> Value:
    """A function from a row's index to its value in `column`, which converts that row alone; lists become tuples."""
    if not pa.types.is_list(column.type):
        found: Value = column.to_pylist().__getitem__
        return found
    offsets, between = column.offsets.to_pylist(), _between(column.values)
    return lambda row: between(offsets[row], offsets[row + 1])


def _between(values: pa.Array) -> Callable[[int, int], tuple[Any, ...]]:
    """A function from two indices to the values between them, as a tuple."""
    if pa.types.is_list(values.type):
        one = value_of(values)
        return lambda start, end: tuple(map(one, range(start, end)))
    if pa.types.is_integer(values.type):
        numbers = values.to_numpy()  # a row's token ids are a few of millions
        return lambda start, end: tuple(numbers[start:end].tolist())
    found = values.to_pylist()
    return lambda start, end: tuple(found[start:end])
