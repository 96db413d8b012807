"""The run folder as a place: its name, whether it may be used, and that one process at a time is at work in it."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile

from filelock import FileLock, Timeout

from pipeline.errors import RunFolderError, UsageError, reason

LOCK = "run.lock"
PROBLEMS = "problems.jsonl"
"""The input of a run whose problems were given as values."""
BEFORE_A_RUN = {LOCK, PROBLEMS}
"""What stands in the folder of a run whose engines are not open yet; more than that is somebody's."""


def check_output(folder: Path) -> None:
    """Raise `UsageError` where `folder` cannot become a new run folder, before anything is started."""
    try:
        str(folder).encode()
        if (folder / "run.json").is_file():
            raise UsageError(f"{folder}: is a run already; add --resume to go on with it, or name another folder with --output")
        if folder.exists() and not (folder.is_dir() and _is_unused(folder)):
            raise UsageError(f"{folder}: is there already; name another folder with --output")
        _check_writable(folder)
    except (UnicodeEncodeError, OSError) as error:
        raise UsageError(f"{str(folder)!r}: is no name for a folder; name another one with --output") from error


def _check_writable(folder: Path) -> None:
    """Make `folder` and a file in it, and take both back: permissions alone say nothing to root, nor of `/proc`."""
    missing = [place for place in (folder, *folder.absolute().parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except OSError as error:
        parent = next(place for place in folder.absolute().parents if place not in missing)
        what = f"{folder}: cannot be created in {parent}: {reason(error)}; name another folder with --output"
        raise UsageError(what) from error
    finally:
        for place in missing:
            with suppress(OSError):
                place.rmdir()


def _is_unused(folder: Path) -> bool:
    return {place.name for place in folder.iterdir()} <= BEFORE_A_RUN


def new_folder(graph: str) -> Path:
    """A folder under `runs` that is not there yet."""
    name = f"{graph}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (Path("runs") / (name if i == 1 else f"{name}-{i}") for i in count(1))
    return next(folder for folder in names if not folder.exists())


@contextmanager
def removed_if_unused(folder: Path) -> Iterator[None]:
    """Take back the folders that were made for `folder` where nothing has been written into it: no engine could start."""
    made = [place for place in (folder, *folder.absolute().parents) if not place.exists()]
    try:
        yield
    finally:
        with suppress(OSError):
            if made and _is_unused(folder):
                for name in BEFORE_A_RUN:
                    (folder / name).unlink(missing_ok=True)
                for place in made:
                    place.rmdir()


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Create `folder` where it is missing, and keep others out of it until the end, however this process ends.

    Raises `UsageError` while another process is at work in it, `RunFolderError` where it cannot be created or written.
    """

    def sign(file: int) -> None:
        os.truncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)

    lock = FileLock(folder / LOCK, mode=0o644, blocking=False, on_acquired=sign)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        pid = (folder / LOCK).read_text(errors="replace")[:20].strip()
        raise UsageError(f"{folder}: process {pid or 'unknown'} is at work in it; wait for its end") from error
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written: {reason(error)}") from error
    try:
        yield
    finally:
        lock.release()
