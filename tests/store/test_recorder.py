"""Rows dropped in microseconds reach the folder on every clock and loop, whatever ends the run."""

import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import pyarrow.parquet as pq
import pytest
from msgspec import Struct
from msgspec.structs import replace

from pipeline.errors import RunFolderError
from pipeline.runtime.virtual_loop import VirtualLoop
from pipeline.store import recorder as module
from pipeline.store.recorder import open_recorder
from pipeline.store.rows import CallRow, ChainRow, StepRow
from pipeline.store.store import RunStore
from tests.support.patience import HANGS_S
from tests.support.rows import blank
from tests.support.run_files import write_run_json

pytestmark = pytest.mark.anyio
REAL = pytest.mark.parametrize("anyio_backend", ["asyncio"])
BOTH = pytest.mark.parametrize("virtual", [True, False])
"""Simulated time on the real clock writes in the loop, real time in a thread."""


@pytest.fixture(autouse=True)
def _run(tmp_path: Path) -> None:
    write_run_json(tmp_path)


def rows_of(folder: Path, *tables: str) -> list[int]:
    return [int(pq.read_table(folder / table).num_rows) for table in tables]


@pytest.mark.parametrize(("virtual", "anyio_backend"), [(True, ("asyncio", {"loop_factory": VirtualLoop})), (False, "asyncio")])
async def test_rows_arrive_in_order(tmp_path: Path, virtual: bool) -> None:
    call, started, threads = blank(CallRow), anyio.current_time(), set(threading.enumerate())
    async with open_recorder(RunStore(tmp_path), virtual) as recorder:
        for index in range(3000):
            recorder.call(replace(call, call_index=index))
            if index % 1000 == 0:
                recorder.step(blank(StepRow))
                recorder.chain(blank(ChainRow))
                await recorder.room()
        await recorder.aclose()  # and once more at the end
    assert recorder.waiting == 0
    assert pq.read_table(tmp_path / "calls")["call_index"].to_pylist() == list(range(3000))
    assert rows_of(tmp_path, "steps", "chains") == [3, 3]
    if virtual:
        assert anyio.current_time() == started, "the clock stood still"
        assert set(threading.enumerate()) <= threads, "others may have ended"


async def test_virtual_rows_are_written_as_they_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_ROWS", 4)
    async with open_recorder(RunStore(tmp_path), virtual=True) as recorder:
        for _ in range(3):
            recorder.call(blank(CallRow))
        await anyio.sleep(3600)
        assert recorder.waiting == 3
        recorder.call(blank(CallRow))
        await anyio.sleep(1e-6)
        assert recorder.waiting == 0
        monkeypatch.setattr(module, "WRITE_EVERY_S", 0.0)  # by the real clock
        recorder.call(blank(CallRow))
        recorder.call(blank(CallRow))
        await anyio.sleep(1e-6)
        assert recorder.waiting == 0


class GatedStore(RunStore):
    """A store on a slow disk: it works while `gate` is open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gate = threading.Event()

    def append(self, table: str, rows: Sequence[Struct]) -> None:
        self.gate.wait(HANGS_S)
        super().append(table, rows)


@REAL
async def test_room_waits_for_a_slow_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 8)
    monkeypatch.setattr(module, "WRITE_ROWS", 4)
    store = GatedStore(tmp_path)
    async with open_recorder(store, virtual=False) as recorder:
        await recorder.room()
        for _ in range(8):
            recorder.call(blank(CallRow))
        with anyio.move_on_after(0.03) as waited:
            await recorder.room()
        assert (waited.cancelled_caught, recorder.waiting) == (True, 8)
        store.gate.set()
        with anyio.fail_after(HANGS_S):
            await recorder.room()
        assert recorder.waiting == 0


@REAL
@BOTH
async def test_a_failed_write_ends_the_run(tmp_path: Path, virtual: bool) -> None:
    rows = [blank(CallRow)] * 8192
    with pytest.raises(RunFolderError, match=r"calls: cannot be written: no such file or directory$"):  # noqa: PT012
        async with open_recorder(RunStore(tmp_path), virtual) as recorder:
            recorder.chain(blank(ChainRow))
            shutil.rmtree(tmp_path / "calls")
            for row in rows:
                recorder.call(row)
            await anyio.sleep_forever()
    with pytest.raises(RunFolderError, match="no such file"):
        await recorder.room()
    assert rows_of(tmp_path, "chains") == [0], "no chain is there whose calls are not"


@REAL
@BOTH
async def test_an_error_of_the_body_leaves_as_it_was(tmp_path: Path, virtual: bool) -> None:
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:  # noqa: PT012
        async with open_recorder(RunStore(tmp_path), virtual) as recorder:
            recorder.call(blank(CallRow))
            raise error
    assert (caught.value, error.__context__) == (error, None)
    assert rows_of(tmp_path, "calls") == [1]


@REAL
@BOTH
async def test_cancellation_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, virtual: bool) -> None:
    """Not even while a thread writes."""
    monkeypatch.setattr(module, "WRITE_ROWS", 2)
    store = RunStore(tmp_path) if virtual else GatedStore(tmp_path)
    with anyio.CancelScope() as scope:
        async with open_recorder(store, virtual) as recorder:
            recorder.call(blank(CallRow))
            recorder.call(blank(CallRow))
            await anyio.sleep(0.01)
            recorder.call(blank(CallRow))
            recorder.chain(blank(ChainRow))
            scope.cancel()
            if isinstance(store, GatedStore):
                store.gate.set()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert rows_of(tmp_path, "calls", "steps", "chains") == [3, 0, 1]
