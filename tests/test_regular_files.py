"""Only regular files of a run folder are opened and replaced: nothing is written through a link, no pipe is waited for."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import InputError, RunFolderError
from pipeline.files import NotRegular, check_own
from pipeline.store.events import CallRow
from pipeline.store.folder import LOCK, hold, is_held
from pipeline.store.read import read_batches
from pipeline.store.run_file import RunFile
from pipeline.store.run_store import RunStore

Blank = Callable[..., Any]


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file outside of the run folder."""
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


def test_the_lock_is_not_written_through_a_link(tmp_path: Path, victim: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / LOCK).symlink_to(victim)
    with pytest.raises(RunFolderError, match=r"run/run\.lock: run\.lock is a link"), hold(run):
        pass
    with pytest.raises(NotRegular):
        check_own(run / LOCK)
    assert victim.read_text() == "precious"
    assert not is_held(run)


def test_a_part_is_not_written_through_a_link(tmp_path: Path, victim: Path, blank: Blank) -> None:
    run = tmp_path / "run"
    store = RunStore(run)
    store.append("calls", [blank(CallRow)])
    (run / "calls/part-00000.parquet.tmp").symlink_to(victim)
    store.close()
    assert victim.read_text() == "precious"
    assert [batch.num_rows for batch in read_batches(run, "calls", ["call_index"])] == [1]


def test_a_part_made_of_a_dead_run_is_not_written_through_a_link(tmp_path: Path, victim: Path, blank: Blank) -> None:
    run = tmp_path / "run"
    store = RunStore(run)
    store.append("calls", [blank(CallRow)])
    content = (run / "calls/wal-00000.arrows").read_bytes()
    store.close()
    (run / "calls/part-00000.parquet").unlink()
    (run / "calls/wal-00000.arrows").write_bytes(content)
    (run / "calls/part-00000.parquet.tmp").symlink_to(victim)
    RunStore(run).recover()
    assert victim.read_text() == "precious"
    assert [batch.num_rows for batch in read_batches(run, "calls", ["call_index"])] == [1]


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_write_ahead_file_that_is_no_regular_file_is_a_sentence(tmp_path: Path, victim: Path, kind: str) -> None:
    path = tmp_path / "run/calls/wal-00000.arrows"
    path.parent.mkdir(parents=True)
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(victim)
    with pytest.raises(InputError, match=r"wal-0*\.arrows: cannot be read: wal-0*\.arrows is a (named pipe|link), not a regular file"):
        RunStore(tmp_path / "run").recover()
    assert os.path.lexists(path)
    assert victim.read_text() == "precious"


def test_a_run_json_that_is_a_pipe_is_a_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    with pytest.raises(
        InputError, match=r"run\.json: cannot be read: run\.json is a named pipe, not a regular file; expected a run folder"
    ):
        RunFile.read(tmp_path)
