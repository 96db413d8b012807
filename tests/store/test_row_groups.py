"""Row groups of a table, read in any order: values by row are those that were written."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import InputError
from pipeline.store.columns import columns_of, schema_of
from pipeline.store.events import CallRow
from pipeline.store.parts import label_of_table
from pipeline.store.read import RowGroups, value_of
from pipeline.store.run_store import RunStore
from pipeline.store.wal import Wal

Blank = Callable[..., Any]
COLUMNS = ("request_id", "output_token_ids", "stop_reason", "option_logprobs", "prompt_digest", "queue_time_s")


def rows(blank: Blank, start: int) -> list[CallRow]:
    return [
        blank(
            CallRow,
            request_id=f"r{i}",
            output_token_ids=((i, (1 << 31) - 1), (), (2,)) if i % 3 else (),
            stop_reason=(None, "7", "\n\n") if i % 3 else (),
            option_logprobs=(-0.5, float("-inf")),
            prompt_digest=None if i % 2 else -i,
            queue_time_s=None if i % 2 else 0.5,
        )
        for i in range(start, start + 10)
    ]


def test_every_value_is_found_in_parts_and_in_what_a_dead_run_left(tmp_path: Path, blank: Blank) -> None:
    store = RunStore(tmp_path)
    store.append("calls", rows(blank, 0))
    store.close()
    wal = Wal(tmp_path / "calls/wal-00001.arrows", label_of_table(tmp_path, "calls").put_on(schema_of(CallRow)))
    wal.append(columns_of(schema_of(CallRow), rows(blank, 10)))
    wal.append(columns_of(schema_of(CallRow), rows(blank, 20)))
    wal.close()
    groups = RowGroups(tmp_path, "calls", COLUMNS)
    written = [row for start in (0, 10, 20) for row in rows(blank, start)]
    found = []
    for number in range(len(groups)):
        values = groups.read(number, COLUMNS)
        assert groups.column(number, "request_id") == [values["request_id"](i) for i in range(len(groups.column(number, "request_id")))]
        found += [[values[name](i) for name in COLUMNS] for i in range(len(groups.column(number, "request_id")))]
    assert found == [[getattr(row, name) for name in COLUMNS] for row in written]


def test_a_table_without_rows_has_no_groups_and_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    RunStore(tmp_path).close()
    assert len(RowGroups(tmp_path, "calls", COLUMNS)) == 0
    (tmp_path / "calls/part-00000.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"part-00000\.parquet: cannot be read"):
        RowGroups(tmp_path, "calls", COLUMNS)


@given(st.lists(st.lists(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4), max_size=4), max_size=8), st.integers(0, 8))
def test_lists_of_lists_are_found_in_slices_too(values: list[list[list[int]]], start: int) -> None:
    column = pa.array(values, pa.list_(pa.list_(pa.int64()))).slice(min(start, len(values)))
    value = value_of(column)
    assert [value(i) for i in range(len(column))] == [tuple(map(tuple, row)) for row in values[min(start, len(values)) :]]
