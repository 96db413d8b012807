"""Reads the calls of a run once, from the last to the first, for all analyses together: a run folder enters, accumulators are filled.

A row is written when its call ends. Read backwards, each call therefore begins with its row, and only calls that are in flight or
waiting need be held. Where rows are not in that order, or do not fit into the outline, all are read again and sorted.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct

from pipeline.analysis.arrays import Array, Names
from pipeline.analysis.capabilities import PURPOSE_FROM, with_purpose
from pipeline.analysis.time.outline import Outline, read_outline, read_whole_outline, ready_of
from pipeline.errors import InputError
from pipeline.store.read import count_rows, read_backwards

TABLES = ("calls", "steps", "chains")
BASE = ("chain_id", "engine", "stage", "attempt", "error_type", "submit_unix_ns", "end_unix_ns", "client_wait_s")
"""Columns of the calls table that `Calls` is made of."""
LONG = 50_000
"""Number of calls from which compiling the analyses saves time."""
LATER = ("recomputed_input_tokens", "replica")
"""Columns of whole numbers that earlier versions did not write: null there."""
ENCODED = ("chain_id", "engine", "stage", "kind", "purpose", "error_type")
"""Columns that are read as dictionaries, because their values repeat."""


class Calls(Struct, frozen=True, kw_only=True):
    """A part of a run's calls in the order of their ends, as columns of equal length. Times are nanoseconds of work, see `outline.Axis`."""

    chain: Array
    """Indices into the outline's chains."""
    engine: Array
    """Indices into the outline's engines."""
    stage: Array
    """Indices into `stages`."""
    stages: Sequence[str]
    """Names of the stages of this part and of all parts that were read before; parts that are read later may add names at the end."""
    again: Array
    """Whether it is a repeated attempt at a call."""
    failed: Array
    """Whether the attempt was not answered."""
    ready: Array
    """When the call could have been sent; never after `submit`."""
    submit: Array
    """When it was sent to the engine."""
    end: Array
    """When it was answered or had failed; never before `submit`."""
    table: Any
    """The same calls as a `pyarrow.Table` with all columns that accumulators asked for."""

    def seconds(self, name: str) -> Array:
        """The column `name` of `table`, in seconds; NaN where it is not known."""
        return np.asarray(self.table.column(name).to_numpy())


class Accumulator(Protocol):
    """An analysis that adds up calls. It gets all calls of a run in parts, the last ones first."""

    columns: tuple[str, ...]
    """Columns of the calls table that it needs in addition to `BASE`."""

    def add(self, calls: Calls) -> None:
        """Add `calls`, none of which ended after any that were added before."""


class _Misfit(Exception):
    """The calls do not fit into the outline, or are not in the order of their ends."""


Found = TypeVar("Found", bound=Sequence[Accumulator])
Part = TypeVar("Part", pa.Table, Calls)


def accumulate(run: Path, accumulators: Callable[[Outline], Found]) -> Found:
    """Add all calls of the run folder `run` to the accumulators that `accumulators` makes of its outline, and return these.

    Tries three ways, each right for more runs and dearer than the one before: with the outline of a run that has ended; with an
    outline of all calls; and with all calls in memory, sorted. Raises `InputError` where `run` has no trace that can be read.
    """
    if not any((run / table).is_dir() for table in TABLES):
        raise InputError(str(run), f"is not a run folder; expected {', '.join(TABLES[:2])} and {TABLES[2]} in it")
    for read, source in ((read_outline, _backwards), (read_whole_outline, _backwards), (read_whole_outline, _at_once)):
        found = accumulators(outline := read(run))
        columns = tuple({name: None for each in found for name in (*BASE, *each.columns)})
        with suppress(_Misfit):
            for calls in _prefetched(source(run, outline, columns)):
                for accumulator in found:
                    accumulator.add(calls)
            return found
    raise AssertionError("unreachable")


def is_long(run: Path) -> bool:
    """Whether the run folder `run` has enough calls for compiling the analyses to save time."""
    return count_rows(run, "calls") >= LONG


def _backwards(run: Path, outline: Outline, columns: Sequence[str]) -> Iterator[Calls]:
    """The calls in parts, from the last to the first."""
    # Invariant: no call of a part ends after `floor`, the first end of the parts before it.
    reader, floor = _Reader(outline), outline.span
    for table in _prefetched(_tables(run, columns)):
        if table.num_rows:
            calls = reader.calls(in_one_piece(table))
            if len(calls.end) and calls.end[-1] > floor:
                raise _Misfit
            floor = min([floor, *calls.end[:1].tolist()])
            yield calls


def _at_once(run: Path, outline: Outline, columns: Sequence[str]) -> Iterator[Calls]:
    """All calls as one part."""
    tables = list(_tables(run, columns))[::-1]
    if tables:
        yield _Reader(outline).calls(in_one_piece(pa.concat_tables(tables)))


def _tables(run: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows from the last to the first; `purpose`, where asked for, is filled in for runs of earlier versions."""
    maybe = [name for name in LATER if name in columns]
    written = dict.fromkeys([*columns, *(PURPOSE_FROM if "purpose" in columns else ())])
    required = tuple(name for name in written if name != "purpose" and name not in maybe)
    if "purpose" not in columns:
        return (_with_later(table, maybe) for table in read_backwards(run, "calls", required, ENCODED, maybe=maybe))
    read = read_backwards(run, "calls", required, ENCODED, maybe=("purpose", *maybe))
    return (_with_later(with_purpose(table), maybe) for table in read)


def _with_later(table: pa.Table, names: Sequence[str]) -> pa.Table:
    """`table` with those of the columns `names`, of whole numbers, that it lacks as nulls."""
    for name in names:
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, pa.int64()))
    return table


class _Reader:
    """Turns tables of rows into `Calls` whose columns are indices and instants of one outline."""

    def __init__(self, outline: Outline) -> None:
        self._outline = outline
        self._engines, self._stages = Names({role: place for place, role in enumerate(outline.engines)}), Names()

    def calls(self, table: pa.Table) -> Calls:
        """The rows of `table` in the order of their ends; raises `_Misfit` where one does not fit into the outline.

        An outline of all calls fits every row that was there when it was made; rows written since then are left out.
        """
        calls = self._calls(table)
        known = (calls.chain >= 0) & (calls.engine < len(self._outline.engines)) & (calls.ready >= 0) & (calls.end <= self._outline.span)
        if known.all():
            return calls
        if not self._outline.whole:
            raise _Misfit
        return self._calls(table.filter(pa.array(known)))

    def _calls(self, table: pa.Table) -> Calls:
        axis = self._outline.axis
        end = axis.of(whole(table, "end_unix_ns").to_numpy())
        if (end[1:] < end[:-1]).any():
            order = np.argsort(end, kind="stable")
            table, end = in_one_piece(table.take(order)), end[order]
        submit, ready = axis.of(whole(table, "submit_unix_ns").to_numpy()), axis.of(ready_of(table))
        return Calls(
            chain=self._outline.chains.places(whole(table, "chain_id")),
            engine=self._engines.codes(whole(table, "engine")),
            stage=self._stages.codes(whole(table, "stage")),
            stages=list(self._stages),
            again=whole(table, "attempt").to_numpy() > 0,
            failed=whole(table, "error_type").is_valid().to_numpy(zero_copy_only=False),
            ready=np.minimum(ready, submit),
            submit=submit,
            end=np.maximum(submit, end),
            table=table,
        )


def in_one_piece(table: pa.Table) -> pa.Table:
    """A copy of `table` in which every column has one chunk, and so one dictionary."""
    return table.combine_chunks()


def whole(table: pa.Table, name: str) -> pa.Array:
    """The column `name` of `table` as one array."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _prefetched(parts: Iterator[Part]) -> Iterator[Part]:
    """The same `parts`, each made by a thread while the one before it is used."""
    with ThreadPoolExecutor(1) as maker:
        coming = maker.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = maker.submit(next, parts, None)
            yield part
