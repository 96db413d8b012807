"""The run folder itself: whether it may be used, a name for a new one, and a lock that admits one process at a time.

A folder is checked under its lock, so that what was found to be so stays so until the lock is released.
"""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import msgspec
from filelock import FileLock, Timeout

from pipeline.errors import InputError, RunFolderError, UsageError, reason
from pipeline.files import is_draft
from pipeline.store.wal import lock_file

FILE = "run.json"
FORMAT = 1
"""The format of run folders that this version writes and reads."""
LOCK = "run.lock"
"""The lock file in a run folder; it holds the pid of the process that has it."""
PROBLEMS = "problems.jsonl"
"""The file in a run folder that holds the problems of a run to which they were given as values."""
BEFORE_A_RUN = {LOCK, PROBLEMS}
"""The files that a run writes into its folder before its engines are open; a folder with others is in use."""
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
"""Errors of the system that say that a file system has no locks."""
ATTEMPTS = 20
"""How often a folder is made again when another process, which found no use for it, removes it in the same moment."""


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Create `folder` where it is missing, and lock it against other processes until the end, however this process ends.

    Raises `UsageError` while another process is at work in it, `RunFolderError` where it cannot be created or written.
    """
    try:
        lock = _locked(folder)
    except OSError as error:
        raise RunFolderError(_without_locks(folder, error) or f"{folder}: cannot be written: {reason(error)}") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def hold_output(folder: Path, card: str = "run.json", *, resume: bool = False) -> Iterator[None]:
    """Hold the folder of a new run, or with `resume` also of one whose file `card` is there, until the end.

    A folder that was made for it and in which no run has begun is removed at the end. Raises `UsageError` where the folder is in
    use, by a process or by other files, or cannot be created; `RunFolderError` where that of a run cannot be written.
    """
    _check_output(folder, card, resume)
    missing = _missing(folder)
    try:
        lock = _locked(folder)
    except (OSError, RecursionError) as error:
        if not missing and (folder / card).is_file():
            raise RunFolderError(_without_locks(folder, error) or f"{folder}: cannot be written: {reason(error)}") from error
        raise _cannot_be_created(folder, missing, error) from error
    with _released_at_the_end(lock, folder, missing):
        _check_output(folder, card, resume)
        yield


@contextmanager
def hold_default(parent: Path, name: str) -> Iterator[Path]:
    """Make a folder in `parent` that nobody else has, named after `name` and the time, and hold it until the end; as `hold_output`."""
    stamped = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    for folder in (parent / (stamped if i == 1 else f"{stamped}-{i}") for i in count(1)):
        missing = _missing(folder)
        try:
            _make(folder)
            lock = _locked(folder)
        except FileExistsError as error:
            if not parent.is_dir():
                raise _cannot_be_created(folder, missing, error) from error
            continue
        except OSError as error:
            raise _cannot_be_created(folder, missing, error) from error
        with _released_at_the_end(lock, folder, missing):
            yield folder
        return


def _check_output(folder: Path, card: str, resume: bool) -> None:
    """Raise `UsageError` where `folder` can neither become a new run folder nor, with `resume`, is one that can be resumed."""
    try:
        str(folder).encode()
        found = _found(folder)
    except (UnicodeEncodeError, OSError) as error:
        raise UsageError(f"{str(folder)!r}: invalid directory name; choose another one with --output") from error
    if resume and card in found:
        return
    if "run.json" in found:
        remedy = "add --resume to resume it, or choose" if card == "run.json" else "choose"
        raise UsageError(f"{folder}: already contains a run; {remedy} another directory with --output")
    if not found <= BEFORE_A_RUN:
        raise UsageError(f"{folder}: already exists; choose another directory with --output")


def _found(folder: Path) -> set[str]:
    """The names in `folder`, by one look, as other processes make and remove it, without drafts, which a killed process leaves; of a file
    its own, of what is missing none."""
    try:
        return {entry.name for entry in os.scandir(folder) if not is_draft(entry)}
    except FileNotFoundError:
        return set()
    except NotADirectoryError:
        return {folder.name} if folder.exists() else set()


def _missing(folder: Path) -> list[Path]:
    """The folders that are to be made for `folder`, itself first."""
    return [place for place in (folder, *folder.absolute().parents) if not place.exists()]


def _cannot_be_created(folder: Path, missing: list[Path], error: BaseException) -> UsageError:
    for place in missing:
        with suppress(OSError):
            place.rmdir()
    parent = next(place for place in folder.absolute().parents if place not in missing)
    if (no_locks := _without_locks(folder, error)) is not None:
        return UsageError(no_locks)
    why = "folders nested too deeply" if isinstance(error, RecursionError) else reason(error)
    return UsageError(f"{folder}: cannot be created in {parent}: {why}; choose another directory with --output")


def _without_locks(folder: Path, error: BaseException) -> str | None:
    """The message for an error that means that there are no locks; None for any other."""
    if not isinstance(error, OSError) or error.errno not in NO_LOCKS:
        return None
    why = f"its file system does not support locks ({reason(error)}), so two processes could write to one run"
    return f"{folder}: {why}; choose a directory on another file system, or mount this one with locks (NFS: with its lock service)"


def _make(folder: Path) -> None:
    """Create `folder`; of several processes that do so one succeeds. Raises `FileExistsError` in the others, and `OSError`."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            return folder.mkdir()
        except FileNotFoundError:
            if attempt == ATTEMPTS:
                raise


_SIGNED: WeakKeyDictionary[FileLock, bytes] = WeakKeyDictionary()
"""The locks of this process, and what it wrote into the lock file of each."""


def check_still_held(folder: Path) -> None:
    """Raise `RunFolderError` where this process holds `folder` and another one has taken it all the same, as it can where the locks of a
    file system exclude nobody."""
    for lock, signature in list(_SIGNED.items()):
        if not lock.is_locked or lock.lock_file != str(folder / LOCK):
            continue
        with suppress(OSError):
            found = Path(lock.lock_file).read_bytes()
            if found and found != signature:
                what = f"process {_pid(found)} has taken over this run, as the locks of its file system have no effect"
                raise RunFolderError(f"{folder}: {what}; this process has stopped writing to it; let one process at a time work on a run")


def _acquire(lock: FileLock) -> None:
    """Take a lock; a lock file that was made for it is removed where its file system has no locks."""
    there = os.path.lexists(lock.lock_file)
    try:
        lock.acquire()
    except OSError as error:
        if not there and error.errno in NO_LOCKS:
            Path(lock.lock_file).unlink(missing_ok=True)
        raise


def _locked(folder: Path) -> FileLock:
    """A lock of `folder`, which is created where it is missing. Raises `UsageError` while another process has it, and `OSError`."""

    signature = f"{os.getpid()} {uuid4().hex}\n".encode()

    def sign(file: int) -> None:
        if os.fstat(file).st_nlink > 1:
            raise OSError(f"{LOCK} is a second name of another file")
        os.truncate(file, 0)
        os.pwrite(file, signature, 0)

    lock = FileLock(folder / LOCK, mode=0o644, blocking=False, thread_local=False, on_acquired=sign)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _acquire(lock)
            _SIGNED[lock] = signature
            return lock
        except (FileNotFoundError, FileExistsError):  # the second where it is removed between two looks at it
            if attempt == ATTEMPTS:
                raise
        except Timeout as error:
            with suppress(FileNotFoundError):  # its holder has just removed it
                raise UsageError(f"{folder}: {_at_work(folder)}") from error
    raise UsageError(f"{folder}: other processes are using it; wait until they have ended")


def _at_work(folder: Path) -> str:
    """Who is using a folder that is locked, and what to do."""
    holder = _pid((folder / LOCK).read_bytes())
    if holder == str(os.getpid()):
        return "this process is at work in it; wait for the end of its earlier run, or close the iterator of that (contextlib.aclosing)"
    return f"process {holder} is at work in it; wait for its end"


def _pid(signature: bytes) -> str:
    """The process that wrote a lock file: its number, or where it is."""
    said = signature[:60].decode(errors="replace").strip()
    number = said.partition(" ")[0]
    return number if number.isdecimal() else said or "unknown"


@contextmanager
def _released_at_the_end(lock: FileLock, folder: Path, made: list[Path]) -> Iterator[None]:
    """Release `lock` at the end; before that, if no run has begun in `folder`, remove the lock file and the folders `made` for it."""
    try:
        yield
    finally:
        with suppress(OSError):
            if _found(folder) <= BEFORE_A_RUN:
                for name in BEFORE_A_RUN if made else (LOCK,):
                    (folder / name).unlink(missing_ok=True)
                for place in made:
                    place.rmdir()
        lock.release()


def is_held(folder: Path) -> bool:
    """Whether a process is at work in `folder`."""
    try:
        with (folder / LOCK).open("rb") as file:
            lock_file(file.fileno())
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


class OtherFormat(InputError):
    """A run folder has another format than this version reads."""

    def __init__(self, where: str, found: object) -> None:
        what = f"is of the format {found}" if found is not None else "names no format"
        super().__init__(where, f"{what}, and this version reads format {FORMAT}; read it with the version that wrote it, or run it again")


def folder_id(folder: Path) -> str:
    """The random name of a run folder; empty where it has no `run.json`. Raises `InputError` for one that cannot be read."""
    return str(read_card(folder).get("folder_id", "")) if os.path.lexists(folder / FILE) else ""


def read_card(folder: Path) -> dict[str, Any]:
    """The raw content of the `run.json` in `folder`; raises `InputError`."""
    path = folder / FILE
    try:
        if path.is_fifo():  # would wait for a writer
            raise OSError("it is a named pipe")
        raw = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {reason(error)}; expected a run folder") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(str(path), f"is not a run.json of this program: {error}") from error
    if raw.get("format") != FORMAT:
        raise OtherFormat(str(path), raw.get("format"))
    return raw
