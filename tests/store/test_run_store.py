"""Rows become Parquet that others open, whole parts only; what is reported outlives kills and full disks."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from msgspec.structs import asdict

from pipeline.errors import InputError, RunFolderError
from pipeline.store import parts, run_store
from pipeline.store.columns import schema_of
from pipeline.store.events import TABLES, CallRow, ChainRow, StepRow
from pipeline.store.parts import read_batches
from pipeline.store.run_store import RunStore

Blank = Callable[..., Any]


def indices(folder: Path, table: str = "calls", column: str = "call_index") -> list[int]:
    """Of all rows that can be read."""
    return [value for batch in read_batches(folder, table, [column]) for value in batch.column(column).to_pylist()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


ROW: dict[str, Any] = {
    "candidate_index": (0, 1),
    "output_token_ids": ((1, 2, 3), ()),
    "stop_reason": ("\n\n", None),
    "finish_reason": ("stop", "length"),
    "option_logprobs": (-0.5, -1.5),
    "queue_time_s": 0.25,
    "seed": 2**63 - 1,
}


def test_what_goes_in_comes_out(tmp_path: Path, blank: Blank) -> None:
    rows = [blank(CallRow, **ROW, call_index=index) for index in range(600)] + [blank(CallRow)]
    with_unit = RunStore(tmp_path)
    with_unit.append("calls", rows)
    with_unit.close()
    table = pq.read_table(tmp_path / "calls")
    assert table.schema.field("e2e_latency_s").metadata[b"unit"] == b"s"
    back = [{key: _tuple(value) for key, value in row.items()} for row in table.to_pylist()]
    assert back == [asdict(row) for row in rows]


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value


def test_duckdb_and_pyarrow_open_the_folder(tmp_path: Path, blank: Blank) -> None:
    trace = RunStore(tmp_path)
    trace.append("steps", [blank(StepRow, decision="accepted", step_token_ids=(1, 2)), blank(StepRow, decision="fallback")])
    trace.close()
    query = f"select decision, len(step_token_ids) from read_parquet('{tmp_path}/steps/part-*.parquet')"
    assert duckdb.sql(query).fetchall() == [("accepted", 2), ("fallback", 0)]
    assert duckdb.sql(f"select count(*) from read_parquet('{tmp_path}/chains/part-*.parquet')").fetchall() == [(0,)]
    assert ds.dataset(tmp_path / "steps").count_rows() == 2
    file = pq.ParquetFile(tmp_path / "steps" / "part-00000.parquet")
    chunk = file.metadata.row_group(0).column(file.schema_arrow.names.index("decision"))
    assert chunk.compression == "ZSTD"
    assert chunk.has_dictionary_page


def test_a_store_without_rows_leaves_three_empty_tables(tmp_path: Path) -> None:
    RunStore(tmp_path).close()
    for table, row in TABLES.items():
        assert names(tmp_path / table) == ["part-00000.parquet"]
        assert pq.read_table(tmp_path / table).schema.equals(schema_of(row))


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of 4 rows, parts of 2 groups."""
    monkeypatch.setattr(run_store, "BATCH_ROWS", 2)
    monkeypatch.setattr(parts, "GROUP_ROWS", 4)
    monkeypatch.setattr(parts, "PART_GROUPS", 2)


@pytest.mark.usefixtures("_small")
def test_groups_and_parts_fill_in_order(tmp_path: Path, blank: Blank) -> None:
    trace = RunStore(tmp_path)
    calls = tmp_path / "calls"
    trace.append("calls", [blank(CallRow, call_index=index) for index in range(2)])
    assert names(calls) == ["wal-00000.arrows"]
    trace.append("calls", [blank(CallRow, call_index=index) for index in range(2, 10)])
    assert names(calls) == ["part-00000.parquet", "wal-00001.arrows"]
    trace.append("calls", [blank(CallRow, call_index=index) for index in range(10, 13)])
    assert names(calls) == ["part-00000.parquet", "part-00001.parquet.tmp", "wal-00001.arrows"]
    assert ds.dataset(str(calls / "part-00000.parquet")).count_rows() == 8
    trace.close()
    trace.close()
    assert names(calls) == ["part-00000.parquet", "part-00001.parquet"]
    first = pq.ParquetFile(calls / "part-00000.parquet").metadata
    assert [first.row_group(group).num_rows for group in range(first.num_row_groups)] == [4, 4]
    assert pq.read_table(calls)["call_index"].to_pylist() == list(range(13))


def test_big_rows_make_a_group_by_their_bytes(tmp_path: Path, blank: Blank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "GROUP_BYTES", 100_000)
    trace = RunStore(tmp_path)
    trace.append("steps", [blank(StepRow, step_text="x" * 200_000)])
    assert names(tmp_path / "steps") == ["part-00000.parquet.tmp", "wal-00000.arrows"]
    trace.close()


def test_a_second_session_adds_parts_and_clears_unreadable_ones(tmp_path: Path, blank: Blank) -> None:
    first = RunStore(tmp_path)
    first.append("chains", [blank(ChainRow, sample_index=1)])
    first.close()
    (tmp_path / "chains" / "part-00001.parquet.tmp").write_bytes(b"PAR1 cut off")
    second = RunStore(tmp_path)
    second.append("chains", [blank(ChainRow, sample_index=2)])
    second.close()
    assert names(tmp_path / "chains") == ["part-00000.parquet", "part-00001.parquet"]
    assert names(tmp_path / "calls") == ["part-00000.parquet"], "no second empty part"
    assert pq.read_table(tmp_path / "chains")["sample_index"].to_pylist() == [1, 2]


@contextmanager
def _no_file_over(size: int) -> Iterator[None]:
    """The operating system refuses to let any file grow further, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("_small")
def test_a_full_disk_is_one_sentence_and_leaves_whole_parts(tmp_path: Path, blank: Blank) -> None:
    trace = RunStore(tmp_path)
    trace.append("calls", [blank(CallRow)] * 8)
    trace.append("chains", [blank(ChainRow)])
    with _no_file_over(30_000):
        with pytest.raises(RunFolderError) as caught:
            trace.append("calls", [blank(CallRow, output_token_ids=(tuple(os.urandom(50_000)),))] * 4)
        trace.close()
    assert str(caught.value) == f"{tmp_path}/calls: cannot write the trace: file too large"
    assert names(tmp_path / "calls") == ["part-00000.parquet"]
    assert pq.read_table(tmp_path / "calls").num_rows == 8
    assert pq.read_table(tmp_path / "chains").num_rows == 1


def test_a_disk_that_is_full_at_the_end(tmp_path: Path, blank: Blank) -> None:
    trace = RunStore(tmp_path)
    trace.append("calls", [blank(CallRow)])
    with _no_file_over(100), pytest.raises(RunFolderError, match="/calls: cannot write the trace: file too large"):
        trace.close()
    assert [names(tmp_path / table) for table in TABLES] == [["wal-00000.arrows"], [], []]
    assert indices(tmp_path) == [0]
    RunStore(tmp_path).recover()
    assert names(tmp_path / "calls") == ["part-00000.parquet"]
    assert indices(tmp_path) == [0]


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "calls").write_text("")
    with pytest.raises(InputError, match="/calls: cannot be read: not a directory"):
        RunStore(tmp_path).open()


@pytest.mark.usefixtures("_small")
def test_a_part_that_fails_leaves_its_rows_and_makes_room_for_the_next(tmp_path: Path, blank: Blank) -> None:
    trace = RunStore(tmp_path)
    trace.append("calls", [blank(CallRow, call_index=index) for index in range(3)])
    (tmp_path / "calls" / "part-00000.parquet.tmp").mkdir()  # nothing can be written there
    with pytest.raises(RunFolderError, match="/calls: cannot write the trace: is a directory"):
        trace.append("calls", [blank(CallRow, call_index=3)])
    trace.append("calls", [blank(CallRow, call_index=4)])
    trace.close()
    assert names(tmp_path / "calls") == ["part-00000.parquet.tmp", "part-00001.parquet", "wal-00000.arrows"]
    assert indices(tmp_path) == [0, 1, 2, 3, 4]


def test_a_folder_that_is_removed_meanwhile(tmp_path: Path, blank: Blank) -> None:
    trace = RunStore(tmp_path)
    trace.append("calls", [blank(CallRow)])
    shutil.rmtree(tmp_path / "calls")
    with pytest.raises(RunFolderError, match=r"/calls: cannot write the trace: no such file or directory$"):
        trace.append("calls", [blank(CallRow)])
    with pytest.raises(RunFolderError, match=r"/calls: cannot write the trace: no such file or directory$"):
        trace.close()


APPEND_FOREVER = """
import os, sys
from pipeline.store import parts, run_store
from pipeline.store.events import CallRow
from tests.support.rows import blank
parts.GROUP_ROWS, parts.PART_GROUPS, run_store.BATCH_ROWS = 8, 2, 4
for line in sys.stdin:
    folder, start = line.rsplit(maxsplit=1)
    child = os.fork()
    if child:
        print(child, flush=True)
        os.waitpid(child, 0)
        print("dead", flush=True)
        continue
    trace, count = run_store.RunStore(run_store.Path(folder)), int(start)
    while True:
        trace.append("calls", [blank(CallRow, call_index=index) for index in range(count, count + 3)])
        count += 3
        print(count, flush=True)
"""


@pytest.mark.slow
def test_what_was_reported_outlives_a_kill(tmp_path: Path, root: Path) -> None:
    """Twelve processes, one after the other, go on with a table and are killed at some moment, parts being finished meanwhile."""
    chance = random.Random(7)
    rows = 0
    with subprocess.Popen([sys.executable, "-c", APPEND_FOREVER], stdin=-1, stdout=-1, text=True, cwd=root) as nursery:
        assert nursery.stdin
        assert nursery.stdout
        for _ in range(12):
            print(tmp_path, rows, file=nursery.stdin, flush=True)
            child = int(nursery.stdout.readline())
            reported = [int(nursery.stdout.readline()) for _ in range(chance.randrange(1, 16))]
            os.kill(child, signal.SIGKILL)
            reported += [int(line) for line in iter(nursery.stdout.readline, "dead\n")]
            found = indices(tmp_path)
            assert found == list(range(len(found)))
            assert len(found) >= reported[-1] > rows
            rows = len(found)
        nursery.stdin.close()
    RunStore(tmp_path).recover()
    assert pq.read_table(tmp_path / "calls")["call_index"].to_pylist() == list(range(rows))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path) -> None:
    """Leave no byte free."""
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(1))


@pytest.mark.parametrize("group_rows", [3, 8192])
def test_a_disk_that_runs_full(small_disk: Path, blank: Blank, monkeypatch: pytest.MonkeyPatch, group_rows: int) -> None:
    """In the write-ahead file, or in the part: what was taken before can be read, and becomes parts once there is space."""
    monkeypatch.setattr(parts, "GROUP_ROWS", group_rows)
    trace = RunStore(small_disk)
    taken = 0
    with pytest.raises(RunFolderError) as caught:  # noqa: PT012  (which of them fails is not known)
        for taken in range(1000):
            trace.append("calls", [blank(CallRow, call_index=taken, output_token_ids=(tuple(os.urandom(400)),))])
    assert str(caught.value) == f"{small_disk}/calls: cannot write the trace: no space left on device"
    assert indices(small_disk)[:taken] == list(range(taken))
    fill(small_disk)
    with pytest.raises(RunFolderError, match="no space left on device"):
        trace.close()
    found = indices(small_disk)
    assert found[:taken] == list(range(taken))
    subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)
    RunStore(small_disk).recover()
    assert pq.read_table(small_disk / "calls")["call_index"].to_pylist() == found
