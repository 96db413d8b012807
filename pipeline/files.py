"""Durable files: a file is flushed, then given its name, then its folder is flushed, so that it survives a loss of power."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sync_data = getattr(os, "fdatasync", os.fsync)
"""Flush the data of an open file, given by its descriptor; its times need not be flushed, which is faster."""


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A draft beside `path`, to be written in the body: when that ends well, the draft gets the name `path`, durably.

    However else it ends, an earlier file of that name stays and the draft is deleted. A `path` that is no regular file, such as
    `/dev/stdout`, is yielded itself.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield draft
        publish(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def publish(draft: Path, path: Path) -> None:
    """Rename a finished `draft` to `path`, so that after a loss of power `path` is the old file or the new one, whole."""
    _sync(draft)
    os.replace(draft, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of `folder`, so that new names in it survive a loss of power."""
    _sync(folder)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
