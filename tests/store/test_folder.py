"""One process at a time is at work in a run folder, however the one before it ended."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import RunFolderError, UsageError
from pipeline.store.folder import LOCK, hold, hold_output
from pipeline.store.run_file import RunFile
from pipeline.store.run_store import RunStore
from tests.support.paths import ROOT
from tests.support.run_files import write_run_json

HOLD = (
    "import sys; from pathlib import Path; from pipeline.store.folder import hold\nwith hold(Path(sys.argv[1])): print(flush=True); input()"
)


def test_a_folder_is_free_when_its_process_has_gone(tmp_path: Path) -> None:
    folder = tmp_path / "new/run"
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    with pytest.raises(UsageError) as caught, hold(folder):
        pass
    assert str(caught.value) == f"{folder}: process {other.pid} is at work in it; wait for its end"
    other.kill()
    other.communicate()
    with hold(folder), pytest.raises(UsageError, match="this process is at work"), hold(folder):
        pass
    with hold(folder):
        assert [path.name for path in folder.iterdir()] == [LOCK]


def test_a_folder_that_cannot_be_held(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    with pytest.raises(RunFolderError, match="cannot be written: is a directory"), hold(tmp_path):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"file: cannot be written: file exists$"), hold(tmp_path / "file"):
        pass


@pytest.mark.parametrize(("card", "remedy"), [("run.json", "add --resume to resume it, or choose"), ("sweep.json", "choose")])
def test_only_a_run_is_resumed_in_the_folder_of_one(tmp_path: Path, card: str, remedy: str) -> None:
    write_run_json(tmp_path)
    told = f"{tmp_path}: already contains a run; {remedy} another directory with --output"
    with pytest.raises(UsageError, match=f"^{told}$"), hold_output(tmp_path, card, resume=card != "run.json"):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
@pytest.mark.parametrize("new", [True, False])
def test_a_file_system_without_locks_is_named_and_nothing_is_left(
    tmp_path: Path, number: int, new: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`flock` patched to fail as on NFS without its lock service, Lustre without `-o flock`, and some FUSE file systems."""

    def flock(file: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = tmp_path / "new/run" if new else tmp_path
    with (
        pytest.raises(UsageError, match=r"its file system does not support locks .*, so two processes could write"),
        hold_output(folder),
    ):
        pass
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RunFolderError, match="its file system does not support locks"), hold(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_locks_that_exclude_nobody_are_noticed_before_the_next_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`flock` patched to grant every lock, as NFS does where the lock is this machine's alone. The second process takes the run over."""
    monkeypatch.setattr(fcntl, "flock", lambda file, operation: None)
    write_run_json(tmp_path)
    card = RunFile.read(tmp_path)
    with hold(tmp_path):
        store = RunStore(tmp_path)
        store.append("chains", [])
        other = "import fcntl\nfcntl.flock = lambda file, operation: None\n" + HOLD
        subprocess.run([sys.executable, "-c", other, str(tmp_path)], cwd=ROOT, input=b"\n", capture_output=True, check=True)
        taken = r"process \d+ has taken over this run, as the locks of its file system have no effect; this process has stopped writing"
        before = sorted(tmp_path.rglob("*"))
        for write in (lambda: store.append("chains", []), store.close, lambda: card.write(tmp_path)):
            with pytest.raises(RunFolderError, match=taken):
                write()
        assert sorted(tmp_path.rglob("*")) == before
