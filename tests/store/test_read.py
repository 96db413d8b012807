"""Tables are read from parts and write-ahead files alike, while a run goes on and after it died."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import InputError
from pipeline.store import read
from pipeline.store.events import CallRow, StepRow
from pipeline.store.parts import table_files
from pipeline.store.read import read_batches
from pipeline.store.run_store import RunStore

Blank = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, blank: Blank) -> tuple[Path, RunStore]:
    """A run that goes on: rows 0 and 1 in a part, 2 to 4 in a write-ahead file, in batches of one."""
    first = RunStore(tmp_path)
    first.append("calls", [blank(CallRow, call_index=0), blank(CallRow, call_index=1)])
    first.close()
    second = RunStore(tmp_path)
    for index in range(2, 5):
        second.append("calls", [blank(CallRow, call_index=index)])
    return tmp_path, second


def indices(batches: Any) -> list[list[int]]:
    return [batch.column("call_index").to_pylist() for batch in batches]


def test_parts_come_first_and_small_batches_are_joined(run: tuple[Path, RunStore], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, store = run
    assert [file.name for file in table_files(folder, "calls")] == ["part-00000.parquet", "wal-00001.arrows"]
    assert indices(read_batches(folder, "calls", ["call_index"])) == [[0, 1], [2, 3, 4]]
    monkeypatch.setattr(read, "BATCH_ROWS", 2)
    assert indices(read_batches(folder, "calls", ["call_index"])) == [[0, 1], [2, 3], [4]]
    monkeypatch.setattr(read, "BATCH_BYTES", 1)
    assert indices(read_batches(folder, "calls", ["call_index"])) == [[0], [1], [2], [3], [4]]
    store.close()
    assert [file.name for file in table_files(folder, "calls")] == ["part-00000.parquet", "part-00001.parquet"]


def test_batches_of_long_rows_are_short(tmp_path: Path, blank: Blank, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunStore(tmp_path).replace("steps") as table:
        table.append([blank(StepRow, step_index=index, step_token_ids=tuple(range(index, index + 500))) for index in range(1000)])
    monkeypatch.setattr(read, "BATCH_BYTES", 1 << 20)
    batches = list(read_batches(tmp_path, "steps", ["step_index", "step_token_ids"]))
    assert [*chain.from_iterable(batch.column("step_index").to_pylist() for batch in batches)] == list(range(1000))
    assert max(batch.get_total_buffer_size() for batch in batches) < 2 << 20
    assert [batch.num_rows for batch in read_batches(tmp_path, "steps", ["step_index"])] == [1000]


def test_a_file_becomes_a_part_while_the_table_is_read(run: tuple[Path, RunStore]) -> None:
    folder, store = run
    batches = read_batches(folder, "calls", ["call_index"])
    assert indices([next(batches)]) == [[0, 1]]
    store.close()
    assert indices(batches) == [[2, 3, 4]]


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    assert list(read_batches(tmp_path, "calls", ["call_index"])) == []
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls" / "wal-00000.arrows").write_bytes(b"")
    assert list(read_batches(tmp_path, "calls", ["call_index"])) == []
    RunStore(tmp_path).recover()
    assert table_files(tmp_path, "calls") == []


def test_a_table_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("a file in its place")
    with pytest.raises(InputError, match=r"steps: cannot be read: not a directory$"):
        table_files(tmp_path, "steps")
