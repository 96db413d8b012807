"""The calls of a run, from the last to the first, for everything that is added up in one reading of them: a run folder enters.

A row is written when its call ends, so backwards each call begins with its row, and only those in flight or waiting need be
remembered. Where rows are not in that order, or do not fit into the outline, they are read again and sorted.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from msgspec import Struct

from pipeline.analysis.capabilities import PURPOSE_FROM, with_purpose
from pipeline.analysis.time.outline import Outline, read_outline, read_whole_outline, ready_of
from pipeline.analysis.time.timeline import Array, Names
from pipeline.errors import InputError
from pipeline.trace.read import count_rows, read_backwards

TABLES = ("calls", "steps", "chains")
BASE = ("chain_id", "engine", "stage", "attempt", "error_type", "submit_unix_ns", "end_unix_ns", "client_wait_s")
LONG = 50_000
"""Calls of a run from which compiling pays."""
ENCODED = ("chain_id", "engine", "stage", "kind", "purpose", "error_type")


class Calls(Struct, frozen=True, kw_only=True):
    """Some calls in the order of their ends, as columns of equal length."""

    chain: Array
    """Places in the outline's chains."""
    engine: Array
    """Places in the outline's engines."""
    stage: Array
    """Places in `stages`."""
    stages: Sequence[str]
    """Of this and all later calls; those to come may have more."""
    again: Array
    """Not the first attempt."""
    failed: Array
    """The attempt was not answered."""
    ready: Array
    """Nanoseconds of work, as are the two below. Never after `submit`."""
    submit: Array
    end: Array
    """Never before `submit`."""
    table: Any
    """The rows with the columns that were asked for."""

    def seconds(self, name: str) -> Array:
        """A column of seconds, NaN where nothing is known."""
        return np.asarray(self.table.column(name).to_numpy())


class Accumulator(Protocol):
    """Adds up calls; it gets all of them, the last ones first."""

    columns: tuple[str, ...]
    """What it needs beside `BASE`."""

    def add(self, calls: Calls) -> None:
        """Take some calls, which ended before those that came so far."""


class _Misfit(Exception):
    """The calls do not fit into the outline, or are not in the order of their ends."""


Found = TypeVar("Found", bound=Sequence[Accumulator])
Part = TypeVar("Part", pa.Table, Calls)


def accumulate(run: Path, accumulators: Callable[[Outline], Found]) -> Found:
    """Give all calls of the run folder `run` to what `accumulators` makes of its outline; raises `InputError`.

    First as is right for a run that has ended, then with a look at all calls before, and at last with all of them in memory.
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
    """Has it so many calls that compiling what adds them up pays?"""
    return count_rows(run, "calls") >= LONG


def _backwards(run: Path, outline: Outline, columns: Sequence[str]) -> Iterator[Calls]:
    """The calls by and by, from the last to the first."""
    reader, floor = _Reader(outline), outline.span
    for table in _prefetched(_tables(run, columns)):
        if table.num_rows:
            calls = reader.calls(in_one_piece(table))
            if len(calls.end) and calls.end[-1] > floor:
                raise _Misfit
            floor = min([floor, *calls.end[:1].tolist()])
            yield calls


def _at_once(run: Path, outline: Outline, columns: Sequence[str]) -> Iterator[Calls]:
    """All calls together."""
    tables = list(_tables(run, columns))[::-1]
    if tables:
        yield _Reader(outline).calls(in_one_piece(pa.concat_tables(tables)))


def _tables(run: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """The rows from the last to the first; `purpose` is among the columns also where an earlier version wrote the run."""
    if "purpose" not in columns:
        return read_backwards(run, "calls", columns, ENCODED)
    written = dict.fromkeys([*columns, *PURPOSE_FROM])
    del written["purpose"]
    return map(with_purpose, read_backwards(run, "calls", tuple(written), ENCODED, maybe=("purpose",)))


class _Reader:
    """Makes arrays of tables."""

    def __init__(self, outline: Outline) -> None:
        self._outline = outline
        self._engines, self._stages = Names({role: place for place, role in enumerate(outline.engines)}), Names()

    def calls(self, table: pa.Table) -> Calls:
        """The rows of `table` in the order of their ends; raises `_Misfit` where one does not fit into the outline.

        Rows that do not fit into an outline of all calls were written since that was made, and are left out.
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
    """The same rows; every column has one chunk, and so one dictionary."""
    return table.combine_chunks()


def whole(table: pa.Table, name: str) -> pa.Array:
    """A column in one piece."""
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _prefetched(parts: Iterator[Part]) -> Iterator[Part]:
    """The same parts; while one is used, the next is made."""
    with ThreadPoolExecutor(1) as maker:
        coming = maker.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = maker.submit(next, parts, None)
            yield part
