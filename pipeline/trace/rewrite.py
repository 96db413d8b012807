"""Changing what a run folder holds: values in finished parts, rows taken out, or a whole table written anew.

A part is replaced whole: a reader sees the old one or the new one, never half of it; a part in which nothing changes is not
touched. The same holds for a table. Rows that a dead run left in a write-ahead file are changed only after `store.recover`.
"""

import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.errors import RunFolderError, reason
from pipeline.files import new_file, sync_folder
from pipeline.trace.conform import conformed
from pipeline.trace.read import readable
from pipeline.trace.store import TraceStore

Row = dict[str, Any]
ChangeRows = Callable[[Sequence[Row]], Sequence[Mapping[str, Any]]]
"""Takes rows; gives, for each of them, the new values of the columns that change."""


def rewrite(run: Path, table: str, columns: Sequence[str], change: ChangeRows) -> None:
    """Pass the `columns` of every part's rows through `change`, one part at a time, and replace the parts that it changes.

    Raises `InputError` for a part that cannot be read, `RunFolderError` for one that cannot be written.
    """
    for part in parts(run, table):
        with readable(part), pq.ParquetFile(part) as file:
            content = file.read()
        there = [name for name in columns if name in content.column_names]
        rows = conformed(content.select(there), part).to_pylist()
        changed = _changed(content, rows, change(rows))
        if changed is not content:
            _replace(part, changed)


def remove(run: Path, table: str, columns: Sequence[str], gone: Callable[[Row], bool]) -> int:
    """Remove the rows for which `gone`, called with their `columns`, is true; the number of bytes of the parts written anew for it."""
    written = 0
    for part in parts(run, table):
        with readable(part), pq.ParquetFile(part) as file:
            content = file.read()
        keep = [not gone(row) for row in conformed(content.select(list(columns)), part).to_pylist()]
        if not all(keep):
            _replace(part, content.filter(pa.array(keep)))
            written += part.stat().st_size
    return written


def parts(run: Path, table: str) -> list[Path]:
    """The finished parts of a table, in order."""
    return sorted((run / table).glob("part-*.parquet"))


@contextmanager
def replacing(run: Path, table: str, row: type[Struct]) -> Iterator[Callable[[Sequence[Struct]], None]]:
    """Write a whole `table` of the run folder anew: yields a function that appends rows of the Struct `row`.

    When the body ends well the rows replace the old table; however else it ends, the old table stays and the new rows are deleted.
    Raises `RunFolderError` where the folder cannot be written.
    """
    draft = run / f".{table}"
    shutil.rmtree(draft, ignore_errors=True)
    store = TraceStore(draft, {table: row}, sync_every_s=math.inf)
    try:
        yield partial(store.append, table)
        store.close()
        if (run / table).exists():
            os.replace(run / table, draft / "former")
        os.replace(draft / table, run / table)
        sync_folder(run)
    except OSError as error:
        raise RunFolderError(f"{run / table}: cannot be written: {reason(error)}") from error
    finally:
        with suppress(RunFolderError):
            store.close()
        shutil.rmtree(draft, ignore_errors=True)


def _changed(content: pa.Table, rows: Sequence[Row], changes: Sequence[Mapping[str, Any]]) -> pa.Table:
    """`content` with the `changes` of its `rows` applied; `content` itself where no change concerns a column that it has."""
    named = {name for change in changes for name in change} & set(content.column_names)
    for name in sorted(named):
        values = [change.get(name, row[name]) for row, change in zip(rows, changes, strict=True)]
        place = content.column_names.index(name)
        content = content.set_column(place, content.schema.field(place), pa.array(values, content.schema.field(place).type))
    return content


def _replace(part: Path, content: pa.Table) -> None:
    repeating = [field.name for field in content.schema if pa.types.is_string(field.type)]
    try:
        with new_file(part) as draft:
            pq.write_table(content, draft, compression="zstd", use_dictionary=repeating)
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{part}: cannot be written: {reason(error)}") from error
