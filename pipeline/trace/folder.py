"""The run folder itself: a name for a new one, whether it may be used, and a lock that admits one process at a time."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile

from filelock import FileLock, Timeout

from pipeline.errors import RunFolderError, UsageError, reason
from pipeline.trace.regular import NotRegular, check_own, open_regular
from pipeline.trace.wal import lock_file

LOCK = "run.lock"
"""The lock file in a run folder; it holds the pid of the process that has it."""
PROBLEMS = "problems.jsonl"
"""The file in a run folder that holds the problems of a run to which they were given as values."""
BEFORE_A_RUN = {LOCK, PROBLEMS}
"""The files that a run writes into its folder before its engines are open; a folder with others is in use."""


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
    """Raise `UsageError` unless `folder` and a file in it can be made, by making them and removing them again.

    Permission bits would not tell: root is not bound by them, and `/proc` refuses files whatever they say.
    """
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
    """The path of a new folder under `runs`, named after `graph` and the time; it is not created."""
    name = f"{graph}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (Path("runs") / (name if i == 1 else f"{name}-{i}") for i in count(1))
    return next(folder for folder in names if not folder.exists())


@contextmanager
def removed_if_unused(folder: Path) -> Iterator[None]:
    """At the end, remove the folders that were made for `folder` if nothing was written into it, because no engine could start."""
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
    """Create `folder` where it is missing, and lock it against other processes until the end, however this process ends.

    Raises `UsageError` while another process is at work in it, `RunFolderError` where it cannot be created or written.
    """

    def sign(file: int) -> None:
        if os.fstat(file).st_nlink > 1:
            raise OSError(f"{LOCK} is a second name of another file")
        os.truncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)

    lock = FileLock(folder / LOCK, mode=0o644, blocking=False, on_acquired=sign)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_own(folder / LOCK)
        lock.acquire()
    except Timeout as error:
        pid = (folder / LOCK).read_text(errors="replace")[:20].strip()
        raise UsageError(f"{folder}: process {pid or 'unknown'} is at work in it; wait for its end") from error
    except NotRegular as error:
        raise RunFolderError(f"{folder}: cannot be written: {error}; remove it") from error
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be written: {reason(error)}") from error
    try:
        yield
    finally:
        lock.release()


def is_held(folder: Path) -> bool:
    """Whether a process is at work in `folder`."""
    try:
        with open_regular(folder / LOCK) as file:
            lock_file(file.fileno())
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
