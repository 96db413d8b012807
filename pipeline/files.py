"""Files that are opened or made with care: a new one is whole and durable, and what is no file is neither read nor replaced.

A durable file is flushed, then given its name, then its folder is flushed, so that it survives a loss of power. Opening a pipe would wait
for its other end, for ever where there is none.
"""

import gzip
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, cast

sync_data = getattr(os, "fdatasync", os.fsync)
"""Flush the data of an open file, given by its descriptor; its times need not be flushed, which is faster."""
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}
_DRAFT = re.compile(r"\.[0-9a-f]{16}\.tmp")


class NotRegular(OSError):
    """What is to be read or replaced is no file; the message has its name and says what it is."""


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading, or the open file that a path such as `/dev/stdin` names; raises `OSError`, `NotRegular` included."""
    if not _is_stream(path):
        _check(path.stat(), path)
    return open(path, "rb")


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
        _check(path.lstat(), path)
    draft = path.parent / f".{token_hex(8)}.tmp"
    draft.touch(exist_ok=False)
    try:
        yield draft
        publish(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a `new_file` to write to, compressed where its name ends in `.gz`.

    Compressed files hold no name and no time, so that equal content gives equal files.
    """
    with new_file(path) as draft, draft.open("wb") as file:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0, compresslevel=6) as packed:
                yield cast(BinaryIO, packed)
        else:
            yield file


def is_draft(path: "Path | os.DirEntry[str]") -> bool:
    """True if `path` has the name of a draft, which only a killed process leaves."""
    return _DRAFT.fullmatch(path.name) is not None


def publish(draft: Path, path: Path) -> None:
    """Rename a finished `draft` to `path`, so that after a loss of power `path` is the old file or the new one, whole."""
    sync_folder(draft)
    os.replace(draft, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of `folder`, so that new names in it survive a loss of power."""
    number = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _check(found: os.stat_result, path: Path) -> None:
    """Raise `NotRegular` for anything but a regular file or a link."""
    kind = stat.S_IFMT(found.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFLNK):
        raise NotRegular(f"{path.name} is {_KINDS.get(kind, 'a device')}, not a regular file")


def _is_stream(path: Path) -> bool:
    """True if `path` names a device, or an open file of a process (`/dev/stdout`, `/dev/fd/63`), that is no regular file.

    Only by its own name: what a link elsewhere leads to was not chosen by the user who named the link's folder.
    """
    return os.path.abspath(path).startswith(("/dev/", "/proc/")) and path.exists() and not path.is_file() and not path.is_dir()
