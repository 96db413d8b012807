"""The run folder itself: whether it may be used, a name for a new one, and a lock that admits one process at a time.

A folder is checked under its lock, so that what was found to be so stays so until the lock is released.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout, lock_descriptor

from pipeline.errors import InputError, UsageError, boundary, reason

FILE = "run.json"
FORMAT = 2
"""The format of run folders that this version writes and reads."""
LOCK = "run.lock"
"""The lock file in a run folder; it holds the pid of the process that has it."""
PROBLEMS = "problems.parquet"
"""The problems of a run, which its input is read into; a server has a table `problems` instead."""
BEFORE_A_RUN = {LOCK, PROBLEMS}
"""The files that a run writes into its folder before its engines are open; a folder with others is in use."""


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Create `folder` where it is missing, and lock it against other processes until the end, however this process ends.

    Raises `UsageError` while another process is at work in it, and where it cannot be created or written.
    """
    lock = FileLock(folder / LOCK, mode=0o644, blocking=False, thread_local=False, fallback_to_soft=False)
    with boundary(UsageError, f"{folder}: cannot be written", foreign=OSError):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout as error:
            raise UsageError(f"{folder}: {_at_work(folder)}") from error
        (folder / LOCK).write_text(f"{os.getpid()}\n")
    try:
        yield
    finally:
        lock.release()


@contextmanager
def hold_output(folder: Path, card: str = FILE, *, resume: bool | None = None) -> Iterator[Path]:
    """Hold the folder of a new run, or with `resume` also of one whose file `card` is there, until the end. None: nothing resumes it.

    A folder that was made for it and in which no run has begun is removed at the end. Raises `UsageError` where the folder is in
    use, by a process or by other files, or cannot be written.
    """
    _check_output(folder, card, resume)
    made = [place for place in (folder, *folder.absolute().parents) if not place.exists()]
    with hold(folder):
        try:
            _check_output(folder, card, resume)
            yield folder
        finally:
            if _found(folder) <= BEFORE_A_RUN:
                with suppress(OSError):
                    for name in BEFORE_A_RUN if made else (LOCK,):
                        (folder / name).unlink(missing_ok=True)
                    for place in made:
                        place.rmdir()


@contextmanager
def hold_default(parent: Path, name: str) -> Iterator[Path]:
    """Hold a new folder in `parent`, named after `name` and the time, as `hold_output` does."""
    stamped = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    numbered = (parent / (stamped if number == 1 else f"{stamped}-{number}") for number in count(1))
    folder = next(folder for folder in numbered if not folder.exists())
    with hold_output(folder):
        yield folder


def _check_output(folder: Path, card: str, resume: bool | None) -> None:
    """Raise `UsageError` where `folder` can neither become a new run folder nor, with `resume`, is one that can be resumed."""
    with boundary(UsageError, f"{str(folder)!r}: invalid directory name", foreign=(OSError, ValueError)):
        found = _found(folder)
    if resume and card in found:
        return
    if not found <= BEFORE_A_RUN:
        what = "contains a run" if FILE in found else "exists"
        remedy = "add --resume to resume it, or choose" if FILE in found and card == FILE and resume is not None else "choose"
        raise UsageError(f"{folder}: already {what}; {remedy} another directory with --output")


def _found(folder: Path) -> set[str]:
    """The names in `folder` but for drafts, which a killed process leaves; of a file its own, of what is missing none."""
    try:
        return {entry.name for entry in os.scandir(folder) if not re.fullmatch(r"\.[0-9a-f]{16}\.tmp", entry.name)}
    except FileNotFoundError:
        return set()
    except NotADirectoryError:
        return {folder.name} if folder.exists() else set()


def _at_work(folder: Path) -> str:
    """Who is using a folder that is locked, and what to do."""
    holder = (folder / LOCK).read_text(errors="replace").strip()
    if holder == str(os.getpid()):
        return "this process is at work in it; wait for the end of its earlier run, or close the iterator of that (contextlib.aclosing)"
    return f"process {holder or 'unknown'} is at work in it; wait for its end"


def check_run(folder: Path) -> None:
    """Raise `InputError` unless a run has begun in `folder`."""
    if not (folder / FILE).exists():
        what = "holds no run" if folder.is_dir() else "not a directory" if folder.exists() else "no such directory"
        raise InputError(str(folder), f"{what}; expected a run folder")


def is_held(folder: Path) -> bool:
    """Whether a process is at work in `folder`."""
    with suppress(OSError), (folder / LOCK).open("rb") as file:
        return not lock_descriptor(file.fileno(), blocking=False)
    return False


def folder_id(folder: Path) -> str:
    """The random name of a run folder; raises `InputError` as `read_card` does."""
    return str(read_card(folder).get("folder_id", ""))


def read_card(folder: Path) -> dict[str, Any]:
    """The raw content of the `run.json` in `folder`; raises `InputError`."""
    path = folder / FILE
    try:
        raw = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {reason(error)}; expected a run folder") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(str(path), f"is not a run.json of this program: {error}") from error
    if (found := raw.get("format")) != FORMAT:
        what = f"is of the format {found}" if found is not None else "names no format"
        what += f", and this version reads format {FORMAT}; read it with the version that wrote it, or run it again"
        raise InputError(str(path), what)
    return raw
