"""Files and texts made with care: a new file is whole and durable, a text from elsewhere is safe to show and to store.

A durable file is flushed, then given its name, then its folder is flushed, so that it survives a loss of power. In a text, control
characters stay visible as `\\uXXXX`, the way JSON writes them, so that JSON stays the same JSON.
"""

import gzip
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, cast

sync_data = getattr(os, "fdatasync", os.fsync)
"""Flush the data of an open file, given by its descriptor; its times need not be flushed, which is faster."""
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except tab and line feed, characters that change the direction of writing, and lone surrogates."""


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A draft next to `path`, to be written in the body: when that ends well, the draft gets the name `path`, durably.

    However else it ends, an earlier file of that name stays and the draft is deleted. Where `path` is a link, the link is replaced,
    not what it leads to. Raises `OSError` where `path` is a device or a folder, which is not replaced.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path.name} is not a regular file")
    draft = path.parent / f".{token_hex(8)}.tmp"
    draft.touch(exist_ok=False)
    try:
        yield draft
        sync_path(draft)
        os.replace(draft, path)
        sync_path(path.parent)
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


def sync_path(path: Path) -> None:
    """Flush a file, or the entries of a folder, so that new names in it survive a loss of power."""
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sanitize(text: str) -> str:
    """`text` with control characters and characters that change the direction of writing shown as `\\uXXXX`; line feeds stay."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """`text` sanitized and on one line: line feeds are shown as `\\n`, so that untrusted text cannot add lines."""
    return sanitize(text).replace("\n", "\\n")


def storable(text: str) -> str:
    """`text` as valid UTF-8, with escapes for the bytes of file names that are not."""
    return text.encode(errors="backslashreplace").decode()
