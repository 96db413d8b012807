"""Reading the tables of a run folder: finished parts, then the write-ahead files of a run that is in progress or was killed.

Nothing is written and no lock is taken, so a run may continue meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.errors import InputError
from pipeline.store.columns import schema_of
from pipeline.store.events import ROWS
from pipeline.store.parts import open_part, part_rows, readable, table_files
from pipeline.store.wal import read_wal

Row = TypeVar("Row", bound=Struct)
Value = Callable[[int], Any]
"""Finds the value of a column by the index of the row."""
BATCH_ROWS = 8192
BATCH_BYTES = 4 << 20
"""A batch of a part has at most this many rows (`BATCH_ROWS`), and about as many bytes (`BATCH_BYTES`) at most; batches of write-ahead
files are joined until they have one or the other."""


def check_folder(run: Path) -> None:
    """Raise `InputError` unless `run` is a folder."""
    if not run.is_dir():
        what = "not a directory" if run.exists() else "no such directory"
        raise InputError(str(run), f"{what}; expected a run folder")


def read_batches(run: Path, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Record batches of the `columns` of a table, in the order in which its rows were written, a few thousand rows each.

    A run that was cut short may have no rows. Raises `InputError` where the files are not those of the run, or cannot be read.
    """
    for file in table_files(run, table):
        with readable(file):
            yield from _batches(file, columns)


def read_table(run: Path, row: type[Struct], table: str) -> pa.Table:
    """A whole table in memory, with the columns of the Struct `row`. Raises `InputError` as `read_batches` does."""
    schema = schema_of(row)
    return pa.Table.from_batches((batch.cast(schema) for batch in read_batches(run, table, schema.names)), schema=schema)


def read_rows(run: Path, row: type[Row], table: str) -> list[Row]:
    """A whole table in memory as Structs of the type `row`. Raises `InputError` as `read_batches` does."""
    return [msgspec.convert(each, row) for each in read_table(run, row, table).to_pylist()]


def read_whole(run: Path, table: str) -> Iterator[pa.RecordBatch]:
    """Record batches of all columns of a table, in the order of `ROWS`. Raises `InputError` as `read_batches` does."""
    return read_batches(run, table, schema_of(ROWS[table]).names)


def has_table(run: Path, table: str) -> bool:
    """True if a run folder has this table, be it empty. Raises `InputError` as `read_batches` does."""
    return bool(table_files(run, table))


def count_rows(run: Path, table: str) -> int:
    """The number of rows of a table, of parts from their footers. Raises `InputError` as `read_batches` does."""
    rows = 0
    for file in table_files(run, table):
        with readable(file):
            rows += part_rows(file) if file.suffix == ".parquet" else sum(batch.num_rows for batch in _wal_batches(file, ()))
    return rows


def _batches(file: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    return _part_batches(file, columns) if file.suffix == ".parquet" else _wal_batches(file, columns)


def _part_batches(part: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with open_part(part) as file:
        yield from file.iter_batches(_batch_rows(file.metadata, columns), columns=list(columns))


def _batch_rows(footer: pq.FileMetaData, names: Sequence[str]) -> int:
    """How many rows a batch of these columns has: fewer than `BATCH_ROWS` where they have too many bytes in a row group."""
    places = [place for place in range(footer.num_columns) if footer.schema.column(place).path.partition(".")[0] in names]
    rows = BATCH_ROWS
    for group in map(footer.row_group, range(footer.num_row_groups)):
        size = sum(group.column(place).total_uncompressed_size for place in places)
        rows = min(rows, BATCH_BYTES * max(group.num_rows, 1) // max(size, 1))
    return max(rows, 1)


def _wal_batches(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    batches = read_wal(path)
    try:
        first = next(batches, None)
    except FileNotFoundError:  # it has become a part since it was looked for
        yield from _part_batches(path.with_name(f"part-{path.stem[4:]}.parquet"), columns)
        return
    if first is not None:
        yield from (batch.select(list(columns)) for batch in _joined(first, batches))


def _joined(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    pending, rows, size = [first], first.num_rows, first.nbytes
    for batch in others:
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield pa.concat_batches(pending)
            pending, rows, size = [], 0, 0
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    yield pa.concat_batches(pending)


class RowGroups:
    """Random access to the row groups of one table, numbered from 0 in written order.

    Raises `InputError` for a file that cannot be read.
    """

    def __init__(self, run: Path, table: str, columns: Sequence[str]) -> None:
        self._columns = list(columns)
        self._groups: list[tuple[Path, int] | pa.RecordBatch] = []
        for file in table_files(run, table):
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
            self._groups += _wal_batches(file, self._columns)
            return
        with open_part(file) as part:
            self._groups += [(file, number) for number in range(part.num_row_groups) if part.metadata.row_group(number).num_rows]

    def _batch(self, number: int, columns: list[str]) -> pa.RecordBatch:
        group = self._groups[number]
        if isinstance(group, pa.RecordBatch):
            return group.select(columns)
        file, place = group
        with readable(file), open_part(file) as part:
            return part.read_row_group(place, columns).combine_chunks().to_batches()[0]


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
