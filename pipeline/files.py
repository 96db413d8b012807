"""What it takes for bytes and names to outlast the machine: files are flushed, then named, then their folder is flushed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sync_data = getattr(os, "fdatasync", os.fsync)
"""Flush what was written to an open file; its times may stay behind where the system can tell them apart."""


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A draft beside `path`, to be written in the body: when that ends well, the draft gets the name `path`, durably.

    However else it ends, what had the name keeps it and no draft is left. What is no regular file, such as `/dev/stdout`, is
    its own draft.
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
    """Give a finished `draft` the name `path`, so that after a loss of power there is the old file or the new one, whole."""
    _sync(draft)
    os.replace(draft, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the names in `folder`."""
    _sync(folder)


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
