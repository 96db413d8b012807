"""Run folders whose rows are changed, or added, as the program itself would do it."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.store.rows import RewardRow
from pipeline.store.store import RunStore
from tests.support.rows import blank


def change_rows(run: Path, table: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Replace a table by one in which each row has the changes that `change` gives for it."""
    RunStore(run).rewrite(table, lambda rows: pa.Table.from_pylist([row | change(row) for row in rows.to_pylist()], rows.schema))


def write_rewards(run: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write the table `rewards`, of which the `rows` have the fields that matter."""
    with RunStore(run).rewards() as add:
        add([blank(RewardRow, **row) for row in rows])
