"""Reads a run folder for an export: its `run.json` and tables enter, rows in the order of their starts leave.

Rows are recorded when they end. A first pass over two columns finds, for every batch, the earliest start of all rows from there on;
so the second pass knows which rows may leave, and holds only those that overlap rows that are still to be read. Nothing is written.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct

from pipeline.errors import InputError
from pipeline.store.read import read_batches
from pipeline.store.run_file import RunFile

Array: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
END_OF_TIME = int(np.iinfo(np.int64).max)
"""After every instant."""
BEGINNING = {"calls": ("submit_unix_ns", "client_wait_s"), "chains": ("start_unix_ns",)}
"""Columns that give the start of a row: an instant in ns UTC, less seconds that it waited before."""
LATER = {"replica": pa.int64(), "node": pa.string()}
"""Columns that earlier versions did not write, with their types."""


class Survey(Struct, frozen=True):
    """When the rows of a table began, batch by batch."""

    ends: Array
    """For each batch, the number of rows up to its end."""
    least: Array
    """For each batch, the earliest start of its rows and all later ones, ns UTC."""

    @property
    def rows(self) -> int:
        """Number of rows in the table."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def watermark(self, row: int) -> int:
        """The instant, ns UTC, before which no row with the index `row` or a higher one began."""
        place = int(np.searchsorted(self.ends, row, side="right"))
        return int(self.least[place]) if place < len(self.least) else END_OF_TIME


class OrderedRows(Struct, frozen=True):
    """What the second pass yields after each batch."""

    read: pa.RecordBatch
    """The batch that was read now, in the order in which its rows ended."""
    begun: pa.Table
    """The rows that began before `until` and were in no earlier window, in the order of their starts."""
    until: int
    """No row that is still to be read began before this instant, ns UTC."""


def open_run(folder: Path) -> tuple[RunFile, Survey]:
    """The `run.json` of a run folder and a survey of its calls; raises `InputError` where it is no run folder, or has no calls."""
    file = RunFile.read(folder)
    calls = survey(folder, "calls")
    if not calls.rows:
        raise InputError(str(folder), "has no calls: there is nothing to export")
    return file, calls


def survey(run: Path, table: Literal["calls", "chains"]) -> Survey:
    """The first pass over a table of the run folder `run`; raises `InputError` where it cannot be read."""
    counts, firsts = [0], []
    for batch in read_batches(run, table, BEGINNING[table]):
        if batch.num_rows:
            counts.append(batch.num_rows)
            firsts.append(int(beginnings(batch, table).min()))
    backwards = np.minimum.accumulate(np.array(firsts[::-1], np.int64))
    return Survey(np.cumsum(counts[1:], dtype=np.int64), backwards[::-1])


def beginnings(batch: pa.RecordBatch, table: str) -> Array:
    """When each row began, ns UTC: a call when it was ready to be sent, a chain when it was admitted."""
    begun = batch.column(BEGINNING[table][0]).to_numpy()
    for name in BEGINNING[table][1:]:
        begun = begun - np.rint(batch.column(name).to_numpy() * 1e9).astype(np.int64)
    return np.asarray(begun)


def windows(
    run: Path, table: Literal["calls", "chains"], columns: Sequence[str], found: Survey, maybe: Sequence[str] = ()
) -> Iterator[OrderedRows]:
    """The second pass over a table, up to the last row of its survey `found`: a run in progress may have more by now.

    The columns `maybe`, which earlier versions did not write, are null where a file lacks them.
    """
    done, held = 0, None
    for batch in read_batches(run, table, [*dict.fromkeys((*BEGINNING[table], *columns))], maybe):
        batch = _with_all(batch.slice(0, found.rows - done), maybe)
        done += batch.num_rows
        until = found.watermark(done)
        fresh = pa.Table.from_batches([batch])
        held = fresh if held is None else pa.concat_tables([held, fresh])
        starts = held.column(BEGINNING[table][0]).to_numpy()
        order = np.argsort(starts, kind="stable")
        count = int(np.searchsorted(starts[order], until))
        yield OrderedRows(batch, held.take(pa.array(order[:count])), until)
        held = held.take(pa.array(order[count:]))


def _with_all(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """`batch` with the columns `names` last, in this order, as nulls where it lacks them."""
    given = [name for name in batch.schema.names if name not in names]
    found = batch.select(given)
    for name in names:
        there = name in batch.schema.names
        found = found.append_column(name, batch.column(name) if there else pa.nulls(batch.num_rows, LATER[name]))
    return found
