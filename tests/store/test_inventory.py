"""Files of other runs, second copies, missing and swapped ones are told from the run's own, and left out where that loses nothing."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import InputError
from pipeline.store.checking.inventory import check_files, flaws, take_inventory
from pipeline.store.events import CallRow, StepRow
from pipeline.store.manifest import FILE
from pipeline.store.read import count_rows, read_batches
from pipeline.store.tables import TraceStore, recover

Blank = Callable[..., Any]
Edit = Callable[[Path, Path], object]


def make(folder: Path, blank: Blank, start: int = 0) -> Path:
    """Two parts of calls with rows of their own, one of steps, and a write-ahead file of calls that a killed process left."""
    for first in (0, 10):
        store = TraceStore(folder)
        store.append("calls", [blank(CallRow, call_index=start + first + index) for index in range(3 + first)])
        store.append("steps", [blank(StepRow)])
        store.close()
    live = folder.with_name(f"{folder.name}-live")
    shutil.copytree(folder, live)
    store = TraceStore(live)
    store.append("calls", [blank(CallRow, call_index=start + 99)])
    shutil.rmtree(folder)
    shutil.copytree(live, folder)
    store.close()
    shutil.rmtree(live)
    return folder


@pytest.fixture
def runs(tmp_path: Path, blank: Blank) -> tuple[Path, Path]:
    """A run, and another one."""
    return make(tmp_path / "run", blank), make(tmp_path / "other", blank, 1000)


def indices(folder: Path) -> list[int]:
    return [value for batch in read_batches(folder, "calls", ["call_index"]) for value in batch.column("call_index").to_pylist()]


OWN = [*range(3), *range(10, 23), 99]


def swap(folder: Path) -> None:
    one, other = folder / "calls/part-00000.parquet", folder / "calls/part-00001.parquet"
    os.rename(one, folder / "calls/x")
    os.rename(other, one)
    os.rename(folder / "calls/x", other)


CASES: dict[str, tuple[Edit, str, list[int]]] = {
    "a copy of the write-ahead file": (
        lambda run, other: shutil.copy(run / "calls/wal-00002.arrows", run / "calls/wal-00003.arrows"),
        "calls/wal-00003.arrows is a copy of calls/wal-00002.arrows",
        OWN,
    ),
    "a copy of a part": (
        lambda run, other: shutil.copy(run / "calls/part-00000.parquet", run / "calls/part-00007.parquet"),
        "calls/part-00007.parquet is a copy of calls/part-00000.parquet",
        OWN,
    ),
    "a write-ahead file that is a part already, under another number": (
        lambda run, other: (shutil.copy(run / "calls/wal-00002.arrows", run / "calls/wal-00004.arrows"), recover_only(run)),
        "calls/wal-00004.arrows is a copy of calls/wal-00002.arrows",
        OWN,
    ),
    "a part of another run": (
        lambda run, other: shutil.copy(other / "calls/part-00001.parquet", run / "calls/part-00005.parquet"),
        "calls/part-00005.parquet is of another run",
        OWN,
    ),
    "a part of another run in place of one's own": (
        lambda run, other: shutil.copy(other / "calls/part-00001.parquet", run / "calls/part-00000.parquet"),
        "calls/part-00000.parquet is of another run",
        [*range(10, 23), 99],
    ),
    "a write-ahead file of another run": (
        lambda run, other: shutil.copy(other / "calls/wal-00002.arrows", run / "calls/wal-00003.arrows"),
        "calls/wal-00003.arrows is of another run",
        OWN,
    ),
    "a part that another program wrote": (
        lambda run, other: pq.write_table(pa.table({"call_index": [1]}), run / "calls/part-00009.parquet"),
        "calls/part-00009.parquet is not of this run: the manifest does not list it",
        OWN,
    ),
    "a missing part": (lambda run, other: (run / "calls/part-00000.parquet").unlink(), "calls/part-00000.parquet is missing", OWN[3:]),
    "a missing write-ahead file": (
        lambda run, other: (run / "calls/wal-00002.arrows").unlink(),
        "calls/wal-00002.arrows is missing",
        OWN[:-1],
    ),
    "two parts in each other's place": (
        lambda run, other: swap(run),
        "calls/part-00000.parquet holds what belongs in calls/part-00001.parquet",
        [*range(10, 23), *range(3), 99],
    ),
}


def recover_only(run: Path) -> None:
    """Make parts of the write-ahead files that are the run's own."""
    recover(run)


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_as_the_run_left_it_is_named_and_refused_and_readers_go_on(runs: tuple[Path, Path], case: str) -> None:
    run, other = runs
    edit, says, left = CASES[case]
    assert check_files(run) == flaws(run) == []
    edit(run, other)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(InputError) as caught:
        check_files(run)
    assert says in str(caught.value)
    assert f"pipeline runs check {run} --repair" in str(caught.value)
    assert any(says in sentence for sentence in flaws(run))
    assert indices(run) == left
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_what_another_run_left_never_becomes_rows(runs: tuple[Path, Path]) -> None:
    run, other = runs
    shutil.copy(other / "calls/wal-00002.arrows", run / "calls/wal-00003.arrows")
    shutil.copy(run / "calls/wal-00002.arrows", run / "calls/wal-00004.arrows")
    recover(run)
    assert indices(run) == OWN
    assert count_rows(run, "calls") == len(OWN)
    assert sorted(path.name for path in run.glob("calls/wal-*")) == ["wal-00003.arrows", "wal-00004.arrows"]


@pytest.mark.parametrize("name", ["calls/part-00000.parquet", "calls/wal-00002.arrows"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_file_that_is_no_regular_one_is_named_and_never_opened(runs: tuple[Path, Path], name: str, kind: str) -> None:
    run, other = runs
    path = run / name
    path.unlink()
    {"link": lambda: path.symlink_to(other / name), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[kind]()
    what = f"is a {'named pipe' if kind == 'pipe' else kind}, not a regular file"
    if (kind, path.suffix) == ("link", ".parquet"):
        assert indices(run), "what is only read may lie elsewhere"
    else:
        with pytest.raises(InputError, match=what):
            indices(run)
    with pytest.raises(InputError, match=f"{name} {what}"):
        check_files(run)


def test_a_part_that_was_cut_is_named(runs: tuple[Path, Path]) -> None:
    run, _ = runs
    path = run / "calls/part-00001.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"calls/part-00001\.parquet is not a complete Parquet file"):
        check_files(run)
    with pytest.raises(InputError, match=r"part-00001\.parquet: cannot be read"):
        indices(run)


def test_every_flipped_bit_of_a_part_is_noticed_or_changes_nothing(runs: tuple[Path, Path]) -> None:
    run, _ = runs
    path, whole = run / "calls/part-00000.parquet", list(read_batches(run, "calls", ["call_index", "chain_id"]))
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    noticed = 0
    for place in range(4, len(content), 211):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        try:
            assert list(read_batches(run, "calls", ["call_index", "chain_id"])) == whole
        except InputError:
            noticed += 1
        if place >= footer:
            assert [each.file for each in take_inventory(run).files if each.verdict != "sound"] == [path.name]
    assert noticed


def test_a_small_file_that_claims_gigabytes_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "calls/part-00000.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"call_index": pa.nulls((1 << 20) + 1, pa.int64())}), path, row_group_size=1 << 22)
    assert path.stat().st_size < 3000
    before = pa.total_allocated_bytes()
    said = r"cannot be read: a row group claims 1,048,577 rows and [\d,]+ bytes; expected at most 1,048,576 rows"
    with pytest.raises(InputError, match=said):
        indices(tmp_path)
    assert pa.total_allocated_bytes() == before


def test_a_folder_without_a_manifest_is_read_as_it_is_and_said_to_have_none(runs: tuple[Path, Path]) -> None:
    run, _ = runs
    (run / FILE).unlink()
    assert indices(run) == OWN
    [sentence] = check_files(run)
    assert sentence.startswith(f"{run}: has no manifest of its files")
    assert flaws(run) == []


def test_a_table_that_cannot_be_listed_is_no_empty_one(runs: tuple[Path, Path]) -> None:
    run, _ = runs
    if os.geteuid() == 0:
        pytest.skip("root may list everything")
    (run / "calls").chmod(0)
    with pytest.raises(InputError, match="permission denied"):
        indices(run)
