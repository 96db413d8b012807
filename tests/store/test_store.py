"""Rows become parts that others open; what was appended outlives kills and full disks, and damage is noticed."""

import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import asdict

from pipeline.errors import InputError, RunFolderError
from pipeline.store import store as module
from pipeline.store import wal
from pipeline.store.query import Query
from pipeline.store.rows import TABLES, CallRow, ChainRow, StepRow, schema_of
from pipeline.store.store import RunStore, new_part, read_batches, table_files
from tests.support.rows import blank
from tests.support.run_files import write_run_json


def indices(folder: Path) -> list[int]:
    """Of all calls that can be read."""
    return [value for batch in read_batches(folder, "calls", ["call_index"]) for value in batch["call_index"].to_pylist()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(autouse=True)
def _run(tmp_path: Path) -> None:
    write_run_json(tmp_path, folder_id="ours")


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of 4 rows, parts of 8 calls without content."""
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(module, "GROUP_ROWS", 4)
    monkeypatch.setattr(module, "PART_BYTES", 20_000)


ROW: dict[str, Any] = {
    "candidate_index": (0, 1),
    "output_token_ids": ((1, 2, 3), ()),
    "stop_reason": ("\n\n", None),
    "finish_reason": ("stop", "length"),
    "option_logprobs": (-0.5, -1.5),
    "queue_time_s": 0.25,
    "seed": 2**63 - 1,
}


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    rows = [blank(CallRow, **ROW, call_index=index) for index in range(600)] + [blank(CallRow)]
    store = RunStore(tmp_path)
    store.append("calls", rows)
    store.close()
    table = pq.read_table(tmp_path / "calls")
    assert table.schema.field("e2e_latency_s").metadata[b"unit"] == b"s"
    back = [{key: _tuple(value) for key, value in row.items()} for row in table.to_pylist()]
    assert back == [asdict(row) for row in rows]


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def test_a_store_without_rows_leaves_three_empty_tables(tmp_path: Path) -> None:
    RunStore(tmp_path).close()
    for table, row in TABLES.items():
        assert names(tmp_path / table) == ["part-00000.parquet"]
        assert pq.read_table(tmp_path / table).schema.equals(schema_of(row))


@pytest.mark.usefixtures("_small")
def test_groups_and_parts_fill_in_order(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    calls = tmp_path / "calls"
    store.append("calls", [blank(CallRow, call_index=index) for index in range(2)])
    assert names(calls) == ["wal-00000.log"]
    store.append("calls", [blank(CallRow, call_index=index) for index in range(2, 10)])
    assert names(calls) == ["wal-00000.log", "wal-00001.log"]
    store.make_parts()
    assert names(calls) == ["part-00000.parquet", "wal-00001.log"]
    store.append("calls", [blank(CallRow, call_index=index) for index in range(10, 13)])
    assert [file.name for file in table_files(tmp_path, "calls")] == names(calls)
    assert indices(tmp_path) == list(range(13))
    batches = read_batches(tmp_path, "calls", ["call_index"])
    assert next(batches)["call_index"].to_pylist() == [0, 1, 2, 3]
    store.close()
    store.close()
    assert names(calls) == ["part-00000.parquet", "part-00001.parquet"]
    assert [each for batch in batches for each in batch["call_index"].to_pylist()] == list(range(4, 13)), "of the part that it has become"
    first = pq.ParquetFile(calls / "part-00000.parquet").metadata
    assert [first.row_group(group).num_rows for group in range(first.num_row_groups)] == [4, 4]


def test_long_rows_are_written_and_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GROUP_BYTES", 1 << 20)
    monkeypatch.setattr(module, "PART_BYTES", 3 << 20)
    store = RunStore(tmp_path)
    for start in range(0, 1000, 100):
        store.append("steps", [blank(StepRow, step_index=start + index, step_token_ids=tuple(range(500))) for index in range(100)])
    assert names(tmp_path / "steps") == ["wal-00000.log", "wal-00001.log"]
    store.close()
    batches = list(read_batches(tmp_path, "steps", ["step_index", "step_token_ids"]))
    assert [each for batch in batches for each in batch["step_index"].to_pylist()] == list(range(1000))
    assert max(batch.nbytes for batch in batches) < 2 << 20


def test_a_second_session_adds_parts_and_clears_drafts(tmp_path: Path) -> None:
    first = RunStore(tmp_path)
    first.append("calls", [blank(CallRow, call_index=1)])
    first.close()
    (tmp_path / "calls" / ".0123456789abcdef.tmp").write_bytes(b"PAR1 cut off")
    (tmp_path / "calls" / "notes.parquet").touch()
    second = RunStore(tmp_path)
    second.append("calls", [blank(CallRow, call_index=2)])
    second.close()
    assert names(tmp_path / "calls") == ["notes.parquet", "part-00000.parquet", "part-00001.parquet"]
    assert names(tmp_path / "chains") == ["part-00000.parquet"], "no second empty part"
    assert indices(tmp_path) == [1, 2]


def test_a_table_is_rewritten_where_it_changes(tmp_path: Path) -> None:
    for index in range(3):
        store = RunStore(tmp_path)
        store.append("calls", [blank(CallRow, call_index=index)])
        store.close()
    before = {path.name: path.stat().st_ino for path in (tmp_path / "calls").iterdir()}
    RunStore(tmp_path).rewrite("calls", lambda rows: rows.filter([index != 1 for index in rows["call_index"].to_pylist()]))
    after = {path.name: path.stat().st_ino for path in (tmp_path / "calls").iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"part-00001.parquet"}
    assert indices(tmp_path) == [0, 2]


def test_a_part_whose_writing_fails_leaves_the_earlier_one(tmp_path: Path) -> None:
    schema, path = schema_of(CallRow), tmp_path / "calls/part-00000.parquet"
    for reading in (InputError("p.csv", "is damaged"), KeyboardInterrupt()):
        path.parent.mkdir(exist_ok=True)
        path.write_text("earlier")
        with pytest.raises(type(reading)), new_part(path, schema):
            raise reading
        assert (names(path.parent), path.read_text()) == ([path.name], "earlier")


def test_no_chain_is_synced_before_its_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when it is due, on virtual time, nor when its write-ahead file is full."""
    tables, order, clock = dict[int, str](), list[str](), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[-1])
    monkeypatch.setattr(wal, "sync_data", lambda file: order.append(tables[os.fstat(file).st_ino]))
    store = RunStore(tmp_path, sync_every_s=1.0)
    for now, table, row in ((0.0, "chains", ChainRow), (0.5, "calls", CallRow)):
        clock.append(now)
        store.append(table, [blank(row)])
        tables[(tmp_path / table / "wal-00000.log").stat().st_ino] = table
    clock.append(1.0)
    store.append("chains", [blank(ChainRow)])
    assert order == ["calls", "chains"]
    store.append("calls", [blank(CallRow)])
    monkeypatch.setattr(module, "PART_BYTES", 1)
    store.append("chains", [blank(ChainRow)])
    assert order == 2 * ["calls", "chains"]


@contextmanager
def _no_file_over(size: int) -> Iterator[None]:
    """The operating system refuses to let any file grow further, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_runs_full(tmp_path: Path) -> None:
    """In the write-ahead file, then in a part: what was taken can be read, and becomes a part once there is space."""
    store, taken = RunStore(tmp_path), 0
    with _no_file_over(20_000), pytest.raises(RunFolderError, match=r"/calls: cannot be written: file too large$"):  # noqa: PT012
        for taken in range(1000):
            store.append("calls", [blank(CallRow, call_index=taken)])
    store.append("calls", [blank(CallRow, call_index=taken)])
    with _no_file_over(100), pytest.raises(RunFolderError, match=r"/calls/part-00000\.parquet: cannot be written: file too large"):
        store.close()
    assert [names(tmp_path / table) for table in TABLES] == [["wal-00000.log"], [], []]
    assert indices(tmp_path) == list(range(taken + 1))
    RunStore(tmp_path).recover()
    assert names(tmp_path / "calls") == ["part-00000.parquet"]
    assert indices(tmp_path) == list(range(taken + 1))


def test_a_folder_that_is_removed_meanwhile(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.append("calls", [blank(CallRow)])
    shutil.rmtree(tmp_path / "calls")
    for at_work in (lambda: store.append("calls", [blank(CallRow)]), store.close):
        with pytest.raises(RunFolderError, match=r"/calls: cannot be written: no such file or directory$"):
            at_work()


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    assert list(read_batches(tmp_path, "calls", ["call_index"])) == []
    (tmp_path / "calls").mkdir()
    (tmp_path / "calls" / "wal-00000.log").write_bytes(b"")
    assert list(read_batches(tmp_path, "calls", ["call_index"])) == []
    RunStore(tmp_path).recover()
    assert indices(tmp_path) == []


def test_a_table_that_cannot_be_read_is_not_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "calls").write_text("a file in its place")
    for reader in READERS:
        with pytest.raises(InputError, match=r"calls: cannot be read: not a directory$"):
            reader(tmp_path)


READERS: tuple[Callable[[Path], object], ...] = (
    lambda run: list(read_batches(run, "calls")),
    lambda run: Query(run).select("FROM calls"),
)


def test_the_pages_that_are_read_are_verified(tmp_path: Path) -> None:
    """By pyarrow where it reads them, and before a query does, also one over a view of a view."""
    store = RunStore(tmp_path)
    store.append("calls", [blank(CallRow, output_token_ids=(tuple(os.urandom(5000)),)) for _ in range(10)])
    store.close()
    part = tmp_path / "calls/part-00000.parquet"
    content, group = part.read_bytes(), pq.read_metadata(part).row_group(0)
    [column] = [each for each in map(group.column, range(group.num_columns)) if each.path_in_schema.startswith("output_token_ids")]
    for place in range(column.data_page_offset + 100, column.data_page_offset + column.total_compressed_size, 7001):
        part.unlink()
        part.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        for reader in READERS:
            with pytest.raises(InputError, match=r"part-00000\.parquet: cannot be read: could not verify .*; put the files"):
                reader(tmp_path)
        with Query(tmp_path) as query:
            query.execute("CREATE TEMP VIEW more AS SELECT *, call_index + 1 AS next FROM calls")
            assert query.scalar("SELECT max(next) FROM more WHERE step_index = 0") == 1
            with pytest.raises(InputError, match="could not verify"):
                query.scalar("SELECT count(*) FROM more WHERE len(output_token_ids) > $most", most=1)


EDITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a gap": (
        lambda run: (run / "calls/part-00000.parquet").unlink(),
        r"calls: part-00000\.parquet is missing, and part-00001\.parquet is there; put the files of the run back from a copy, or start a ",
    ),
    "another run": (lambda run: write_run_json(run, folder_id="other"), r"part-00000\.parquet: is not of this run; put the files"),
    "no run": (
        lambda run: pq.write_table(pa.table({"a": [1]}), run / "calls/part-00001.parquet"),
        r"part-00001\.parquet: is not of this run",
    ),
    "cut": (lambda run: os.truncate(run / "calls/part-00000.parquet", 4000), r"part-00000\.parquet: cannot be read: "),
    "empty": (lambda run: os.truncate(run / "calls/part-00000.parquet", 0), r"part-00000\.parquet: cannot be read: "),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_is_not_of_the_run_is_refused_by_name(tmp_path: Path, edit: str) -> None:
    for index in range(2):
        store = RunStore(tmp_path)
        store.append("calls", [blank(CallRow, call_index=index)])
        store.append("chains", [blank(ChainRow)])
        store.close()
    change, says = EDITS[edit]
    change(tmp_path)
    for reader in READERS:
        with pytest.raises(InputError, match=says):
            reader(tmp_path)
