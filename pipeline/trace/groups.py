"""A table of a run folder in any order: its row groups, each a few thousand rows that were written together.

Nothing is written, no lock is taken. What a dead run left in a write-ahead file, no more than one part of a table, is held
in memory; all else is read when it is asked for.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import InputError
from pipeline.trace.read import files, read_file, readable

Value = Callable[[int], Any]
"""The value of a column at a row."""


class RowGroups:
    """The row groups of one table, by their number, in the order in which they were written.

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
        """These `columns` of a group: their values by row."""
        batch = self._batch(number, list(columns))
        return {name: value_of(batch.column(name)) for name in columns}

    def column(self, number: int, name: str) -> list[Any]:
        """One column of a group."""
        found: list[Any] = self._batch(number, [name]).column(name).to_pylist()
        return found

    def _add(self, file: Path) -> None:
        if file.suffix != ".parquet":
            self._groups += read_file(file, self._columns)
            return
        with pq.ParquetFile(file) as part:
            if missing := set(self._columns) - set(part.schema_arrow.names):
                raise InputError(str(file), f"has no column {', '.join(f'`{name}`' for name in sorted(missing))}")
            self._groups += [(file, number) for number in range(part.num_row_groups) if part.metadata.row_group(number).num_rows]

    def _batch(self, number: int, columns: list[str]) -> pa.RecordBatch:
        group = self._groups[number]
        if isinstance(group, pa.RecordBatch):
            return group.select(columns)
        file, place = group
        with readable(file), pq.ParquetFile(file, pre_buffer=False) as part:
            return part.read_row_group(place, columns).combine_chunks().to_batches()[0]


def value_of(column: pa.Array) -> Value:
    """What finds the value at a row without looking at other rows; lists become tuples."""
    if not pa.types.is_list(column.type):
        found: Value = column.to_pylist().__getitem__
        return found
    offsets, between = column.offsets.to_pylist(), _between(column.values)
    return lambda row: between(offsets[row], offsets[row + 1])


def _between(values: pa.Array) -> Callable[[int, int], tuple[Any, ...]]:
    """What gives the values from one place to another."""
    if pa.types.is_list(values.type):
        one = value_of(values)
        return lambda start, end: tuple(map(one, range(start, end)))
    if pa.types.is_integer(values.type):
        numbers = values.to_numpy()  # a row's token ids are a few of millions
        return lambda start, end: tuple(numbers[start:end].tolist())
    found = values.to_pylist()
    return lambda start, end: tuple(found[start:end])
