"""A run folder as something to export: what its `run.json` says enters with its tables, rows in the order in which they began leave.

Rows are recorded when they end. A first pass over two columns finds, for every batch, the earliest beginning of all rows from
there on; so the second pass knows which rows may go, and holds only those that overlap what is still to be read. Nothing is
written.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from msgspec import Struct

from pipeline.errors import InputError
from pipeline.trace.read import read_batches
from pipeline.trace.run_file import RunFile

Array: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
END_OF_TIME = int(np.iinfo(np.int64).max)
BEGINNING = {"calls": ("submit_unix_ns", "client_wait_s"), "chains": ("start_unix_ns",)}
"""What says when a row of a table began: an instant, less the seconds that it had waited before."""


class Survey(Struct, frozen=True):
    """Where rows of a table begin: `least[i]` is the earliest beginning of all rows from `ends[i - 1]` on."""

    ends: Array
    least: Array

    @property
    def rows(self) -> int:
        """How many there are."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def watermark(self, row: int) -> int:
        """No row from `row` on began before this instant."""
        place = int(np.searchsorted(self.ends, row, side="right"))
        return int(self.least[place]) if place < len(self.least) else END_OF_TIME


class Window(Struct, frozen=True):
    """A step of the second pass."""

    read: pa.RecordBatch
    """The rows that were read now, in the order in which they ended."""
    begun: pa.Table
    """The rows that may go now, in the order in which they began; over all windows every row once."""
    until: int
    """No row that is still to be read began before this instant."""


def open_run(folder: Path) -> tuple[RunFile, Survey]:
    """The run and a survey of its calls; raises `InputError` where the folder is no run, or has no calls."""
    file = RunFile.read(folder)
    calls = survey(folder, "calls")
    if not calls.rows:
        raise InputError(str(folder), "has no calls: there is nothing to export")
    return file, calls


def survey(run: Path, table: Literal["calls", "chains"]) -> Survey:
    """The first pass; raises `InputError` where the table cannot be read."""
    counts, firsts = [0], []
    for batch in read_batches(run, table, BEGINNING[table]):
        if batch.num_rows:
            counts.append(batch.num_rows)
            firsts.append(int(beginnings(batch, table).min()))
    backwards = np.minimum.accumulate(np.array(firsts[::-1], np.int64))
    return Survey(np.cumsum(counts[1:], dtype=np.int64), backwards[::-1])


def beginnings(batch: pa.RecordBatch, table: str) -> Array:
    """When each row began, ns UTC: a call when it could have left, a chain when it was admitted."""
    begun = batch.column(BEGINNING[table][0]).to_numpy()
    for name in BEGINNING[table][1:]:
        begun = begun - np.rint(batch.column(name).to_numpy() * 1e9).astype(np.int64)
    return np.asarray(begun)


def windows(run: Path, table: Literal["calls", "chains"], columns: Sequence[str], found: Survey) -> Iterator[Window]:
    """The second pass, over the rows of the survey `found`: a run that goes on may have more by now."""
    done, held = 0, None
    for batch in read_batches(run, table, [*dict.fromkeys((*BEGINNING[table], *columns))]):
        batch = batch.slice(0, found.rows - done)
        done += batch.num_rows
        until = found.watermark(done)
        fresh = pa.Table.from_batches([batch])
        held = fresh if held is None else pa.concat_tables([held, fresh])
        starts = held.column(BEGINNING[table][0]).to_numpy()
        order = np.argsort(starts, kind="stable")
        count = int(np.searchsorted(starts[order], until))
        yield Window(batch, held.take(pa.array(order[:count])), until)
        held = held.take(pa.array(order[count:]))
