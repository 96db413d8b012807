"""Opening files of a run folder: regular files alone, never through a link, and without waiting for the other end of a pipe."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


class NotRegular(OSError):
    """A file that is to be read or replaced is no regular file of its own; the message has its name and what it is."""


def flaw_of(path: Path, *, follow: bool = False) -> str | None:
    """What keeps the file `path` from being a regular one, as a clause such as `is a link, not a regular file`; None where nothing does.

    `follow`: a link to a regular file is as good, because the file is read only. Raises `OSError` where there is no such file.
    """
    return _flaw(os.stat(path) if follow else os.lstat(path))


def check_own(path: Path) -> None:
    """Raise `NotRegular` where `path` is there and writing to it would change another file: where it is a link or has a second name."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if flaw := _flaw(found) or ("has a second name elsewhere (a hard link)" if found.st_nlink > 1 else None):
        raise NotRegular(f"{path.name} {flaw}")


def open_regular(path: Path, *, follow: bool = False) -> BinaryIO:
    """The regular file `path` open for reading; see `flaw_of`. Raises `NotRegular` for a link or a pipe, or another `OSError`."""
    if flaw := flaw_of(path, follow=follow):
        raise NotRegular(f"{path.name} {flaw}")
    ways = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    file = open(os.open(path, ways), "rb")  # noqa: SIM115  (the caller closes it)
    if flaw := _flaw(os.fstat(file.fileno())):
        file.close()
        raise NotRegular(f"{path.name} {flaw}")
    return file


def create_own(path: Path) -> int:
    """A new file `path` open for writing, in place of whatever had the name; its descriptor. A link with that name goes, not its target."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def _flaw(found: os.stat_result) -> str | None:
    kind = stat.S_IFMT(found.st_mode)
    return None if kind == stat.S_IFREG else f"is {_KINDS.get(kind, 'something else')}, not a regular file"
