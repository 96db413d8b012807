"""Rows dropped in microseconds reach the folder on every clock and loop, whatever ends the run."""

# ruff: noqa: PT012  (what raises is the end of the `async with`)
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pyarrow.parquet as pq
import pytest
from msgspec import Struct
from msgspec.structs import replace

from pipeline.errors import RunFolderError
from pipeline.store import recorder as module
from pipeline.store.recorder import open_recorder
from pipeline.store.rows import CallRow, ChainRow, StepRow
from pipeline.store.store import RunStore
from tests.support.patience import HANGS_S

pytestmark = pytest.mark.anyio
Blank = Callable[..., Any]
REAL = pytest.mark.parametrize("anyio_backend", ["asyncio"])


def rows_of(folder: Path, table: str) -> int:
    return int(pq.read_table(folder / table).num_rows)


async def _record_some(folder: Path, blank: Blank, virtual: bool) -> None:
    call = blank(CallRow)
    async with open_recorder(RunStore(folder), virtual) as recorder:
        for index in range(3000):
            recorder.call(replace(call, call_index=index))
            if index % 1000 == 0:
                recorder.step(blank(StepRow))
                recorder.chain(blank(ChainRow))
                await recorder.room()
    assert recorder.waiting == 0
    assert recorder.written == 3006
    assert pq.read_table(folder / "calls")["call_index"].to_pylist() == list(range(3000))
    assert [rows_of(folder, table) for table in ("steps", "chains")] == [3, 3]


@REAL
async def test_rows_arrive_in_order_in_real_time(tmp_path: Path, blank: Blank) -> None:
    await _record_some(tmp_path, blank, virtual=False)


async def test_rows_arrive_in_order_in_virtual_time(tmp_path: Path, blank: Blank) -> None:
    started, threads = anyio.current_time(), set(threading.enumerate())
    await _record_some(tmp_path, blank, virtual=True)
    assert anyio.current_time() == started, "the clock stood still"
    assert set(threading.enumerate()) <= threads, "others may have ended"


async def test_virtual_rows_are_written_as_they_pile_up(tmp_path: Path, blank: Blank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_ROWS", 4)
    async with open_recorder(RunStore(tmp_path), virtual=True) as recorder:
        for _ in range(3):
            recorder.call(blank(CallRow))
        await anyio.sleep(3600)
        assert recorder.written == 0
        recorder.call(blank(CallRow))
        await anyio.sleep(1e-6)
        assert (recorder.waiting, recorder.written) == (0, 4)


async def test_virtual_rows_wait_no_longer_by_the_real_clock(tmp_path: Path, blank: Blank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_EVERY_S", 0.0)
    async with open_recorder(RunStore(tmp_path), virtual=True) as recorder:
        recorder.call(blank(CallRow))
        recorder.call(blank(CallRow))
        await anyio.sleep(1e-6)
        assert recorder.written == 2


@REAL
async def test_a_single_row_is_written_within_the_interval(tmp_path: Path, blank: Blank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_EVERY_S", 0.01)
    async with open_recorder(RunStore(tmp_path), virtual=False) as recorder:
        recorder.call(blank(CallRow))
        with anyio.fail_after(HANGS_S):
            while not recorder.written:  # noqa: ASYNC110  (to poll is what a display does)
                await anyio.sleep(0.002)


async def test_dropping_a_row_costs_microseconds(tmp_path: Path, blank: Blank) -> None:
    row = blank(CallRow)
    async with open_recorder(RunStore(tmp_path), virtual=True) as recorder:
        start = time.process_time()
        for _ in range(2000):
            recorder.call(row)
        assert (time.process_time() - start) / 2000 < 20e-6


class GatedStore(RunStore):
    """A store on a slow disk: it works while `gate` is open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gate = threading.Event()

    def append(self, table: str, rows: Sequence[Struct]) -> None:
        self.gate.wait(HANGS_S)
        super().append(table, rows)


@REAL
async def test_room_waits_for_a_slow_disk(tmp_path: Path, blank: Blank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 8)
    monkeypatch.setattr(module, "WRITE_ROWS", 4)
    store = GatedStore(tmp_path)
    async with open_recorder(store, virtual=False) as recorder:
        await recorder.room()
        for _ in range(8):
            recorder.call(blank(CallRow))
        with anyio.move_on_after(0.03) as waited:
            await recorder.room()
        assert waited.cancelled_caught
        assert recorder.waiting == 8
        store.gate.set()
        with anyio.fail_after(HANGS_S):
            await recorder.room()
        assert recorder.written == 8


async def test_room_lets_virtual_rows_be_written(tmp_path: Path, blank: Blank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 8)
    monkeypatch.setattr(module, "WRITE_ROWS", 4)
    async with open_recorder(RunStore(tmp_path), virtual=True) as recorder:
        for _ in range(20):
            recorder.call(blank(CallRow))
        await recorder.room()
        assert (recorder.waiting, recorder.written) == (0, 20)


async def _lose_the_folder(folder: Path, blank: Blank, virtual: bool) -> None:
    store = RunStore(folder)
    rows = [blank(CallRow)] * 8192
    with pytest.raises(RunFolderError, match=r"calls: cannot be written: no such file or directory$"):
        async with open_recorder(store, virtual) as recorder:
            recorder.chain(blank(ChainRow))
            shutil.rmtree(folder / "calls")
            for row in rows:
                recorder.call(row)
            await anyio.sleep_forever()
    with pytest.raises(RunFolderError, match="no such file"):
        await recorder.room()
    assert rows_of(folder, "chains") == 0, "no chain is there whose calls are not"


@REAL
async def test_a_failed_write_ends_the_run_in_real_time(tmp_path: Path, blank: Blank) -> None:
    await _lose_the_folder(tmp_path, blank, virtual=False)


async def test_a_failed_write_ends_the_run_in_virtual_time(tmp_path: Path, blank: Blank) -> None:
    await _lose_the_folder(tmp_path, blank, virtual=True)


async def test_a_failure_at_the_end_is_raised_too(tmp_path: Path, blank: Blank) -> None:
    with pytest.raises(RunFolderError, match="calls: cannot be written"):
        async with open_recorder(RunStore(tmp_path), virtual=True) as recorder:
            recorder.call(blank(CallRow))
            shutil.rmtree(tmp_path / "calls")


@REAL
@pytest.mark.parametrize("virtual", [True, False])
async def test_an_error_of_the_body_leaves_as_it_was(tmp_path: Path, blank: Blank, virtual: bool) -> None:
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        async with open_recorder(RunStore(tmp_path), virtual) as recorder:
            recorder.call(blank(CallRow))
            raise error
    assert caught.value is error
    assert error.__context__ is None
    assert rows_of(tmp_path, "calls") == 1


@REAL
@pytest.mark.parametrize("virtual", [True, False])
async def test_cancellation_loses_nothing(tmp_path: Path, blank: Blank, virtual: bool) -> None:
    with anyio.CancelScope() as scope:
        async with open_recorder(RunStore(tmp_path), virtual) as recorder:
            recorder.call(blank(CallRow))
            await anyio.lowlevel.checkpoint()
            recorder.chain(blank(ChainRow))
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert [rows_of(tmp_path, table) for table in ("calls", "steps", "chains")] == [1, 0, 1]


@REAL
async def test_cancellation_while_a_thread_writes_loses_nothing(tmp_path: Path, blank: Blank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_ROWS", 2)
    store = GatedStore(tmp_path)
    with anyio.CancelScope() as scope:
        async with open_recorder(store, virtual=False) as recorder:
            recorder.call(blank(CallRow))
            recorder.call(blank(CallRow))
            await anyio.sleep(0.01)
            recorder.call(blank(CallRow))
            scope.cancel()
            store.gate.set()
            await anyio.sleep_forever()
    assert rows_of(tmp_path, "calls") == 3


@REAL
async def test_the_end_is_bounded_when_the_disk_hangs(tmp_path: Path, blank: Blank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.02)
    monkeypatch.setattr(module, "WRITE_ROWS", 1)
    store = GatedStore(tmp_path)
    with pytest.raises(RunFolderError, match=r"the last rows were not written within 0\.02 s$"):
        async with open_recorder(store, virtual=False) as recorder:
            recorder.call(blank(CallRow))
            recorder.call(blank(CallRow))
            await anyio.sleep(0.01)
    store.gate.set()


async def test_closing_twice_is_harmless(tmp_path: Path, blank: Blank) -> None:
    async with open_recorder(RunStore(tmp_path), virtual=True) as recorder:
        recorder.call(blank(CallRow))
        await recorder.aclose()
    assert rows_of(tmp_path, "calls") == 1
