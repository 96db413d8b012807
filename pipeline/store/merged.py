"""The tables of several run folders as those of one: folders enter, one folder with all of their rows leaves.

Rows keep everything but the name of their run. Problems come in the order of the input, all else folder after folder.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.store.columns import schema_of
from pipeline.store.conform import ROWS
from pipeline.store.kept_problems import TABLE as KEPT
from pipeline.store.read import files, read_batches, read_whole
from pipeline.store.tables import BATCH_ROWS, TraceStore


def merge_tables(folders: Sequence[Path], output: Path, run_id: str) -> None:
    """Write every table that all of the run folders have into the folder `output`, as rows of the run `run_id`.

    Raises `InputError` where a table cannot be read, `RunFolderError` where `output` cannot be written.
    """
    rows = {table: row for table, row in ROWS.items() if all(files(folder, table) for folder in folders)}
    store = TraceStore(output, rows, sync_every_s=math.inf)
    try:
        for table in rows:
            for batch in _by_row(folders) if table == KEPT else _one_by_one(folders, table, run_id):
                store.append_batch(table, batch)
    finally:
        store.close()


def places(folder: Path, samples: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The places in the input of all chains of a run folder; see `admission.order.place`."""
    found = [np.empty(0, np.int64)]
    for batch in read_batches(folder, "chains", ["input_row", "sample_index"]):
        row, sample = (batch.column(name).to_numpy(zero_copy_only=False) for name in ("input_row", "sample_index"))
        found.append((row.astype(np.int64) - 1) * samples + sample)
    return np.concatenate(found)


def _one_by_one(folders: Sequence[Path], table: str, run_id: str) -> Iterator[pa.RecordBatch]:
    for folder in folders:
        for batch in read_whole(folder, ROWS[table], table):
            place = batch.schema.get_field_index("run_id")
            yield batch.set_column(place, batch.schema.field(place), pa.array([run_id] * batch.num_rows, pa.string()))


def _by_row(folders: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    """The kept problems of all folders, in the order of the input, in which each folder has its own."""
    schema, waiting = schema_of(ROWS[KEPT]), list[dict[str, Any]]()
    for row in heapq.merge(*(_dicts(folder) for folder in folders), key=itemgetter("input_row")):
        waiting.append(row)
        if len(waiting) == BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(waiting, schema)
            waiting = []
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, schema)


def _dicts(folder: Path) -> Iterator[dict[str, Any]]:
    for batch in read_whole(folder, ROWS[KEPT], KEPT):
        yield from batch.to_pylist()
