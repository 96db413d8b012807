"""Run folders whose rows are changed, or added, as the program itself would do it."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.store.events import RewardRow
from pipeline.store.parts import read_whole
from pipeline.store.run_store import RunStore
from tests.support.rows import blank


def change_rows(run: Path, table: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Replace a table by one in which each row has the changes that `change` gives for it."""
    with RunStore(run).replace(table) as writer:
        for batch in read_whole(run, table):
            writer.append_batch(pa.RecordBatch.from_pylist([row | change(row) for row in batch.to_pylist()], batch.schema))


def write_rewards(run: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write the table `rewards`, of which the `rows` have the fields that matter."""
    with RunStore(run).replace("rewards") as writer:
        writer.append([blank(RewardRow, **row) for row in rows])
