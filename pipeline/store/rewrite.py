"""Changing what a run folder holds: values in finished parts, rows taken out, or a whole table rewritten.

A part is replaced whole: a reader sees the old one or the new one, never half of it; a part in which nothing changes is not
touched. The same holds for a table. Rows that a dead run left in a write-ahead file are changed only after `store.recover`.
"""

import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from pipeline.errors import RunFolderError, boundary, reason
from pipeline.files import new_file, sync_folder
from pipeline.store.checking.inventory import open_manifest
from pipeline.store.conform import conformed
from pipeline.store.part_file import open_part
from pipeline.store.read import files, readable
from pipeline.store.tables import GROUP_ROWS, TraceStore

Row = dict[str, Any]
ChangeRows = Callable[[Sequence[Row]], Sequence[Mapping[str, Any]]]
"""Takes rows; gives, for each of them, the new values of the columns that change."""


def rewrite(run: Path, table: str, columns: Sequence[str], change: ChangeRows) -> None:
    """Pass the `columns` of every part's rows through `change`, one part at a time, and replace the parts that it changes: of the others
    no other column is read.

    Raises `InputError` for a part that cannot be read, `RunFolderError` for one that cannot be written.
    """
    for part in parts(run, table):
        with readable(part), open_part(part) as file:
            there = [name for name in columns if name in file.schema_arrow.names]
            rows = conformed(file.read(there), part).to_pylist()
            changes = change(rows)
            named = {name for each in changes for name in each}.intersection(there)
            content = file.read() if named else None
        if content is not None:
            _replace(run, part, _changed(content, sorted(named), rows, changes))


def remove(run: Path, table: str, columns: Sequence[str], gone: Callable[[pa.Table], Sequence[bool]]) -> int:
    """Remove the rows for which `gone`, called with the `columns` of one part after the other, is true.

    The number of bytes of the parts written anew for it; of the others only the `columns` are read.
    """
    written = 0
    for part in parts(run, table):
        with readable(part), open_part(part) as file:
            leave = gone(conformed(file.read(list(columns)), part))
            content = file.read() if any(leave) else None
        if content is not None:
            _replace(run, part, content.filter(pc.invert(pa.array(leave, pa.bool_()))))
            written += part.stat().st_size
    return written


def parts(run: Path, table: str) -> list[Path]:
    """The finished parts of a table that are the run's own, in order."""
    return [file for file in files(run, table) if file.suffix == ".parquet"]


@contextmanager
def replacing(run: Path, table: str, row: type[Struct]) -> Iterator[Callable[[Sequence[Struct]], None]]:
    """Write a whole `table` of the run folder anew: yields a function that appends rows of the Struct `row`.

    When the body ends well the rows replace the old table; however else it ends, the old table stays and the new rows are deleted.
    Raises `RunFolderError` where the folder cannot be written.
    """
    draft = run / f".{table}"
    with boundary(RunFolderError, f"{run / table}: cannot write the trace", foreign=OSError):
        manifest = open_manifest(run)
    shutil.rmtree(draft, ignore_errors=True)
    store = TraceStore(draft, {table: row}, sync_every_s=math.inf, run=manifest.run if manifest else uuid.uuid4().hex)
    try:
        yield partial(store.append, table)
        store.close()
        if manifest is not None:
            manifest.list_all(table, store.manifest.tables[table].values(), replaced=True)
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


def _changed(content: pa.Table, names: Sequence[str], rows: Sequence[Row], changes: Sequence[Mapping[str, Any]]) -> pa.Table:
    """`content` with the `changes` of its `rows` in the columns `names`, which these rows have."""
    for name in names:
        values = [change.get(name, row[name]) for row, change in zip(rows, changes, strict=True)]
        place = content.column_names.index(name)
        content = content.set_column(place, content.schema.field(place), pa.array(values, content.schema.field(place).type))
    return content


def _replace(run: Path, part: Path, content: pa.Table) -> None:
    repeating = [field.name for field in content.schema if pa.types.is_string(field.type)]
    with boundary(RunFolderError, f"{part}: cannot be written", foreign=(OSError, pa.ArrowException)):
        manifest = open_manifest(run)
        with new_file(part) as draft:
            pq.write_table(
                content, draft, row_group_size=GROUP_ROWS, compression="zstd", use_dictionary=repeating, write_page_checksum=True
            )
            if manifest is not None:
                manifest.list_part(part, content.num_rows, draft)
