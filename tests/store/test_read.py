"""Tables are read from parts and write-ahead files alike, while a run goes on and after it died."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import InputError
from pipeline.store import part_file, read
from pipeline.store.events import CallRow
from pipeline.store.read import files, read_backwards, read_batches
from pipeline.store.tables import TraceStore, recover

Blank = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, blank: Blank) -> tuple[Path, TraceStore]:
    """A run that goes on: rows 0 and 1 in a part, 2 to 4 in a write-ahead file, in batches of one."""
    first = TraceStore(tmp_path)
    first.append("calls", [blank(CallRow, call_index=0), blank(CallRow, call_index=1)])
    first.close()
    second = TraceStore(tmp_path)
    for index in range(2, 5):
        second.append("calls", [blank(CallRow, call_index=index)])
    return tmp_path, second


def indices(batches: Any) -> list[list[int]]:
    return [batch.column("call_index").to_pylist() for batch in batches]


def test_parts_come_first_and_small_batches_are_joined(run: tuple[Path, TraceStore], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, store = run
    assert [file.name for file in files(folder, "calls")] == ["part-00000.parquet", "wal-00001.arrows"]
    assert indices(read_batches(folder, "calls", ["call_index"])) == [[0, 1], [2, 3, 4]]
    monkeypatch.setattr(read, "BATCH_ROWS", 2)
    assert indices(read_batches(folder, "calls", ["call_index"])) == [[0, 1], [2, 3], [4]]
    monkeypatch.setattr(read, "BATCH_BYTES", 1)
    assert indices(read_batches(folder, "calls", ["call_index"])) == [[0], [1], [2], [3], [4]]
    store.close()
    assert [file.name for file in files(folder, "calls")] == ["part-00000.parquet", "part-00001.parquet"]


def test_batches_of_long_rows_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "steps").mkdir()
    table = pa.table({"call_index": range(1000), "step_token_ids": [list(range(500))] * 1000})
    pq.write_table(table, tmp_path / "steps/part-00000.parquet", row_group_size=500, use_dictionary=False)
    monkeypatch.setattr(read, "BATCH_BYTES", 1 << 20)
    batches = list(read_batches(tmp_path, "steps", ["call_index", "step_token_ids"]))
    assert [*chain.from_iterable(indices(batches))] == list(range(1000))
    assert max(batch.get_total_buffer_size() for batch in batches) < 2 << 20
    assert [batch.num_rows for batch in read_batches(tmp_path, "steps", ["call_index"])] == [1000]


def test_backwards_the_last_rows_come_first(run: tuple[Path, TraceStore], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, store = run
    monkeypatch.setattr(read, "BATCH_ROWS", 2)
    found = list(read_backwards(folder, "calls", ["call_index", "stage"], ["stage"]))
    assert indices(found) == [[4], [2, 3], [0, 1]]
    assert [str(piece.schema.field("stage").type).count("dictionary") for piece in found] == [1, 1, 1]
    with pytest.raises(InputError, match="no column `nothing`"):
        list(read_backwards(folder, "calls", ["nothing"]))
    store.close()
    assert indices(read_backwards(folder, "calls", ["call_index"])) == [[2, 3, 4], [0, 1]]


def test_backwards_row_groups_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "calls").mkdir()
    pq.write_table(pa.table({"call_index": range(7)}), tmp_path / "calls/part-00000.parquet", row_group_size=2)
    monkeypatch.setattr(read, "GROUPS", 3)
    assert indices(read_backwards(tmp_path, "calls", ["call_index"])) == [[2, 3, 4, 5, 6], [0, 1]]


def test_a_file_becomes_a_part_while_the_table_is_read(run: tuple[Path, TraceStore]) -> None:
    folder, store = run
    batches = read_batches(folder, "calls", ["call_index"])
    assert indices([next(batches)]) == [[0, 1]]
    store.close()
    assert indices(batches) == [[2, 3, 4]]


def test_only_the_columns_that_are_asked_for(run: tuple[Path, TraceStore]) -> None:
    folder, store = run
    for batch in read_batches(folder, "calls", ["stage", "call_index"], ["engine", "of_later_versions"]):
        assert batch.schema.names == ["stage", "call_index", "engine"]
    store.close()


def test_a_column_that_is_not_there(run: tuple[Path, TraceStore]) -> None:
    folder, _ = run
    for file in ("part-00000.parquet", "wal-00001.arrows"):
        with pytest.raises(InputError, match=rf"{file}: has no column `nobody`, `nothing`; it may have been written by another version$"):
            list(read_batches(folder, "calls", ["call_index", "nobody", "nothing"]))
        (folder / "calls" / file).unlink()


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    assert list(read_batches(tmp_path, "calls", ["call_index"])) == []
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls" / "wal-00000.arrows").write_bytes(b"")
    assert list(read_batches(tmp_path, "calls", ["call_index"])) == []
    recover(tmp_path)
    assert files(tmp_path, "calls") == []


def test_a_page_that_claims_two_gigabytes_takes_no_memory(run: tuple[Path, TraceStore]) -> None:
    folder, store = run
    store.close()
    part = folder / "calls/part-00000.parquet"
    column = next(column for column in _columns(part) if column.path_in_schema == "temperature")
    content, start = bytearray(part.read_bytes()), column.data_page_offset
    # The page's type, its size and its compressed size, as Thrift writes them: `15 TYPE 15 SIZE 15 SIZE`.
    assert (content[start], content[start + 2], content[start + 4]) == (0x15, 0x15, 0x15)
    content[start + 5 : start + 10] = b"\xfe\xff\xff\xff\x0f"
    part.write_bytes(content)
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(InputError, match="cannot be read"):
        list(read_batches(folder, "calls", ["temperature"]))
    assert pa.default_memory_pool().max_memory() < before + (64 << 20)


def test_row_groups_larger_than_any_are_refused(run: tuple[Path, TraceStore], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, store = run
    monkeypatch.setattr(part_file, "GROUP_BYTES", 100)
    for found in (read_batches(folder, "calls", ["stage"]), read_backwards(folder, "calls", ["stage"])):
        with pytest.raises(InputError, match=r"part-0000\d\.parquet: cannot be read: a row group claims [\d,]+ rows and [\d,]+ bytes"):
            list(found)
        store.close()


def _columns(part: Path) -> list[Any]:
    group = pq.read_metadata(part).row_group(0)
    return [group.column(place) for place in range(group.num_columns)]


def test_a_table_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "steps").write_text("a file in its place")
    with pytest.raises(InputError, match=r"steps: cannot be read: not a directory$"):
        files(tmp_path, "steps")
    (tmp_path / "steps").unlink()
    (tmp_path / "steps").symlink_to("steps")
    with pytest.raises(InputError, match=r"steps: cannot be read: steps is a link, not a folder of the run itself$"):
        list(read_batches(tmp_path, "steps", ["stage"]))
