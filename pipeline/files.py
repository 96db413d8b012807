"""Files that are opened or made with care: a new one is durable, and never written over somebody else's through a link.

A durable file is flushed, then given its name, then its folder is flushed, so that it survives a loss of power. A file that is read is
a regular one: opening a pipe would wait for its other end, for ever where there is none.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader
from pathlib import Path
from secrets import token_hex

sync_data = getattr(os, "fdatasync", os.fsync)
"""Flush the data of an open file, given by its descriptor; its times need not be flushed, which is faster."""
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}
_DRAFT = re.compile(r"\.[0-9a-f]{16}\.tmp")


class NotRegular(OSError):
    """A file that is to be read or replaced is no regular file of its own; the message has its name and says what it is."""


def flaw_of(path: Path, *, follow: bool = False) -> str | None:
    """What keeps the file `path` from being a regular one, as a clause such as `is a link, not a regular file`; None where nothing does.

    `follow`: a link to a regular file is as good, because the file is read only. Raises `OSError` where there is no such file.
    """
    return _flaw(os.stat(path) if follow else os.lstat(path))


def check_own(path: Path) -> None:
    """Raise `NotRegular` where `path` is there and writing to it would change another file: where it is a link or has a second name."""
    with suppress(FileNotFoundError):
        found = os.lstat(path)
        _refuse(path, _flaw(found) or ("has a second name elsewhere (a hard link)" if found.st_nlink > 1 else None))


def check_own_folder(path: Path) -> None:
    """Raise `NotRegular` where `path` is a link: what is read or written there would be another folder's."""
    with suppress(FileNotFoundError):
        if stat.S_ISLNK(os.lstat(path).st_mode):
            raise NotRegular(f"{path.name} is a link, not a folder of the run itself")


def open_regular(path: Path, *, follow: bool = False) -> BufferedReader:
    """The regular file `path` open for reading; see `flaw_of`. Raises `NotRegular` for a link or a pipe, or another `OSError`."""
    _refuse(path, flaw_of(path, follow=follow))
    file = open(path, "rb", opener=partial(_opened_at_once, links=follow))  # noqa: SIM115 - the caller closes it
    if flaw := _flaw(os.fstat(file.fileno())):
        file.close()
        _refuse(path, flaw)
    os.set_blocking(file.fileno(), True)
    return file


def create_own(path: Path) -> int:
    """A new file `path` open for writing, in place of whatever had the name; its descriptor. A link with that name goes, not its target."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def open_file(path: Path) -> BufferedReader:
    """Open the regular file at `path` for reading, or the open file that a path such as `/dev/stdin` names; raises `OSError` for others."""
    if not _is_stream(path):
        return open_regular(path, follow=True)
    file = open(path, "rb", opener=_opened_at_once)  # noqa: SIM115 - the caller closes it
    os.set_blocking(file.fileno(), True)
    return file


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A draft next to `path`, to be written in the body: when that ends well, the draft gets the name `path`, durably.

    However else it ends, an earlier file of that name stays and the draft is deleted. Where `path` is a link, the link is replaced,
    not what it leads to. A path such as `/dev/stdout`, which names an open file or a device, is yielded itself. Raises `NotRegular`
    for anything else that is no regular file.
    """
    if _is_stream(path):
        yield path
        return
    with suppress(FileNotFoundError):
        found = os.lstat(path)
        _refuse(path, None if stat.S_ISLNK(found.st_mode) else _flaw(found))
    draft = _new_draft(path.parent)
    try:
        yield draft
        publish(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def is_draft(path: Path) -> bool:
    """True if `path` has the name of a draft, which only a killed process leaves."""
    return _DRAFT.fullmatch(path.name) is not None


def publish(draft: Path, path: Path) -> None:
    """Rename a finished `draft` to `path`, so that after a loss of power `path` is the old file or the new one, whole."""
    _sync(draft)
    os.replace(draft, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of `folder`, so that new names in it survive a loss of power."""
    _sync(folder)


def _is_stream(path: Path) -> bool:
    """True if `path` names a device, or an open file of a process (`/dev/stdout`, `/dev/fd/63`), that is no regular file.

    Only by its own name: what a link elsewhere leads to was not chosen by the user who named the link's folder.
    """
    return os.path.abspath(path).startswith(("/dev/", "/proc/")) and path.exists() and not path.is_file() and not path.is_dir()


def _refuse(path: Path, flaw: str | None) -> None:
    if flaw:
        raise NotRegular(f"{path.name} {flaw}")


def _flaw(found: os.stat_result) -> str | None:
    kind = stat.S_IFMT(found.st_mode)
    return None if kind == stat.S_IFREG else f"is {_KINDS.get(kind, 'something else')}, not a regular file"


def _opened_at_once(path: str, flags: int, *, links: bool = True) -> int:
    """An opener for `open` that waits for nobody, also where the file became a pipe since it was looked at."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if links else os.O_NOFOLLOW))


def _new_draft(folder: Path) -> Path:
    """An empty new file of a name that nobody knows before, so that no link can wait there."""
    draft = folder / f".{token_hex(8)}.tmp"
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))
    return draft


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
