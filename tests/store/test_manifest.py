"""The manifest lists a file before it has its name, whatever cuts it short, and tells the run's own files from others."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.files import NotRegular
from pipeline.store.checking.inventory import take_inventory
from pipeline.store.events import CallRow, ChainRow, RewardRow
from pipeline.store.manifest import FILE, Label, Manifest, number_of
from pipeline.store.part_file import read_footer
from pipeline.store.rewrite import remove, replacing
from pipeline.store.tables import TraceStore

Blank = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, blank: Blank) -> Path:
    """Two parts of calls, one of chains."""
    folder = tmp_path / "run"
    for start in (0, 3):
        store = TraceStore(folder)
        store.append("calls", [blank(CallRow, call_index=index) for index in range(start, start + 3)])
        store.append("chains", [blank(ChainRow)] * (start == 0))
        store.close()
    return folder


def read(folder: Path) -> Manifest:
    manifest = Manifest.read(folder)
    assert manifest is not None
    return manifest


def test_it_lists_every_part_and_each_part_says_where_it_belongs(run: Path) -> None:
    manifest = read(run)
    listed = {table: {name: entry.rows for name, entry in files.items()} for table, files in manifest.tables.items()}
    assert listed == {
        "calls": {"part-00000.parquet": 3, "part-00001.parquet": 3},
        "steps": {"part-00000.parquet": 0},
        "chains": {"part-00000.parquet": 1},
    }
    assert Label.of(read_footer(run / "calls/part-00001.parquet").metadata) == Label(manifest.run, "calls", 1)
    assert take_inventory(run).of("sound") == list(take_inventory(run).files)


def test_a_folder_of_its_own_name_for_every_run(run: Path, tmp_path: Path) -> None:
    TraceStore(tmp_path / "other/run").close()
    assert read(tmp_path / "other/run").run != read(run).run


@pytest.mark.parametrize("kept", [0, 1, 40, -1, -2, -60])
def test_a_torn_line_counts_for_nothing_and_the_next_one_begins_anew(run: Path, blank: Blank, kept: int) -> None:
    path = run / FILE
    content = path.read_bytes()
    path.write_bytes(content[:kept] if kept else b"")
    before = [number_of(name) for files in read(run).tables.values() for name in files] if kept < 0 else []
    store = TraceStore(run)
    store.append("calls", [blank(CallRow, call_index=6)])
    store.close()
    after = read(run).tables
    assert set(before) <= {number_of(name) for files in after.values() for name in files}
    assert sorted(after["calls"]) == [f"part-0000{number}.parquet" for number in range(3)]
    assert [str(each) for each in take_inventory(run).files if each.verdict != "sound"] == []


def test_a_changed_line_counts_for_nothing(run: Path) -> None:
    path = run / FILE
    path.write_bytes(path.read_bytes().replace(b'"rows":1', b'"rows":9'))
    assert "part-00000.parquet" not in read(run).tables["chains"]


def test_a_line_of_what_was_not_done_is_taken_back(run: Path) -> None:
    """The process ended after the line of a rewritten part, before the part had its name."""
    old = (run / "calls/part-00001.parquet").read_bytes()
    remove(run, "calls", ["call_index"], lambda rows: [index == 4 for index in rows.column("call_index").to_pylist()])
    assert read(run).tables["calls"]["part-00001.parquet"].rows == 2
    (run / "calls/part-00001.parquet").write_bytes(old)
    assert [each.verdict for each in take_inventory(run).files] == ["sound"] * 4
    TraceStore(run).close()
    assert read(run).tables["calls"]["part-00001.parquet"].rows == 3


def test_an_old_part_that_was_put_back_later_is_named(run: Path, blank: Blank) -> None:
    old = (run / "calls/part-00001.parquet").read_bytes()
    remove(run, "calls", ["call_index"], lambda rows: [index == 4 for index in rows.column("call_index").to_pylist()])
    store = TraceStore(run)
    store.append("calls", [blank(CallRow)])
    store.close()
    (run / "calls/part-00001.parquet").write_bytes(old)
    assert [str(each) for each in take_inventory(run).of("changed")] == ["calls/part-00001.parquet was changed by another program"]


def test_a_lost_manifest_is_made_again_under_the_same_name(run: Path) -> None:
    before = read(run)
    (run / FILE).unlink()
    assert not take_inventory(run).listed
    TraceStore(run).close()
    assert (read(run).run, read(run).tables) == (before.run, before.tables)


@pytest.mark.parametrize("replaced", [True, False])
def test_a_table_that_is_replaced_whole_is_the_old_one_or_the_new_one(run: Path, blank: Blank, replaced: bool) -> None:
    def rewards(count: int) -> None:
        with replacing(run, "rewards", RewardRow) as append:
            append([blank(RewardRow)] * count)

    rewards(2)
    old = (run / "rewards/part-00000.parquet").read_bytes()
    rewards(5)
    if not replaced:  # the process ended before
        (run / "rewards/part-00000.parquet").write_bytes(old)
    assert [str(each) for each in take_inventory(run).files if each.verdict != "sound"] == []
    TraceStore(run).close()
    assert read(run).tables["rewards"]["part-00000.parquet"].rows == (5 if replaced else 2)


@pytest.mark.parametrize("target", ["link", "folder"])
def test_it_is_not_written_through_a_link(run: Path, tmp_path: Path, target: str) -> None:
    victim = tmp_path / "victim"
    shutil.move(run / FILE, victim)
    before = victim.read_bytes()
    if target == "link":
        (run / FILE).symlink_to(victim)
    else:
        (run / FILE).mkdir()
    with pytest.raises(NotRegular, match=r"is a (link|folder), not a regular file"):
        Manifest.read(run)
    assert victim.read_bytes() == before
