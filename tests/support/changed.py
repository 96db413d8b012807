"""Run folders to which rows are added, as the program itself would do it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pipeline.store.rows import RewardRow
from pipeline.store.store import RunStore
from tests.support.rows import blank


def write_rewards(run: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write the table `rewards`, of which the `rows` have the fields that matter."""
    with RunStore(run).rewards() as add:
        add([blank(RewardRow, **row) for row in rows])
