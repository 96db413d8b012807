"""The file of an export: a path enters, an open file leaves, which has this path only when it was written as a whole."""

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from pipeline.errors import UsageError
from pipeline.files import new_file


def check_output(path: Path, overwrite: bool) -> None:
    """Raise `UsageError` where `path` may not be written, before anything is read."""
    if os.path.lexists(path) and not overwrite:
        raise UsageError(f"{path}: file exists; choose another file with --output, or add --overwrite")
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(f"{path}: not writable; choose another file with --output")


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write to, compressed where its name ends in `.gz`; no file is left when the body fails.

    Compressed files hold no name and no time, so that equal content gives equal files.
    """
    with new_file(path) as draft, draft.open("wb") as file:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", fileobj=file, mtime=0, compresslevel=6) as packed:
                yield cast(BinaryIO, packed)
        else:
            yield file
