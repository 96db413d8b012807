"""Problems that are no files yet: stdin, data sets of the hub and URLs enter, paths of files leave."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from pipeline.errors import InputError, MissingExtra, reason

STDIN = "-"
HUB = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+|[\w.-]+)(?::(?P<config>[\w.-]+))?(?:/(?P<split>[\w.-]+))?")
"""`hf://OWNER/NAME`, with `:CONFIG` and `/SPLIT` where the data set has several."""
SNIFFED = 1 << 16
"""Bytes of stdin that are looked at to tell its format."""
Fetch = Callable[[str, Path], Path]
"""Gives the path of what a URL names, which is in an empty folder where it had to be downloaded."""


@contextmanager
def problem_files(inputs: Sequence[str], fetch: Fetch) -> Iterator[list[Path]]:
    """The paths that these inputs of a command name; what is no file is written to one that is there until the block ends.

    `fetch` downloads URLs. Raises `InputError` for what cannot be read, `MissingExtra` for the hub without the package that reads it, and
    what `fetch` raises.
    """
    if list(inputs).count(STDIN) > 1:
        raise InputError("stdin", "can be read once; name it once")
    with TemporaryDirectory(prefix="problems-") as folder:
        yield [_file(each, Path(folder, str(place)), fetch) for place, each in enumerate(inputs)]


def _file(text: str, folder: Path, fetch: Fetch) -> Path:
    """The path of one input; what is no file is written into `folder`, which no other input has."""
    folder.mkdir()
    if text == STDIN:
        return spooled(sys.stdin.buffer, folder)
    if text.startswith("hf://"):
        return downloaded(text, folder)
    if "://" in text:
        return fetch(text, folder)
    return Path(text)


def spooled(stream: BinaryIO, folder: Path) -> Path:
    """All that `stream` holds in a file of `folder`, named by its format: a file is read more than once."""
    head = stream.read(SNIFFED)
    path = folder / f"stdin{_suffix(head)}"
    try:
        with path.open("wb") as file:
            file.write(head)
            shutil.copyfileobj(stream, file)
    except OSError as error:
        raise InputError("stdin", f"cannot be kept in {folder}: {reason(error)}") from error
    return path


def _suffix(head: bytes) -> str:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(b"PAR1"):
        return ".parquet"
    if head.startswith(b"\x1f\x8b"):
        raise InputError("stdin", "is compressed; unpack it first, as `gunzip -c FILE | pipeline ...` does")
    return ".jsonl" if start.startswith(b"{") else ".json" if start.startswith(b"[") else ".csv"


def downloaded(address: str, folder: Path) -> Path:
    """A data set of the hub as a Parquet file of `folder`."""
    found = HUB.fullmatch(address)
    if found is None:
        raise InputError(address, "expected hf://OWNER/NAME, hf://OWNER/NAME:CONFIG or hf://OWNER/NAME:CONFIG/SPLIT")
    try:
        load = import_module("datasets").load_dataset
    except (ImportError, AttributeError) as error:  # AttributeError: where it is not installed, a folder `datasets` passes for it
        raise MissingExtra(address, "datasets", "data") from error
    try:
        data: Any = load(found["name"], found["config"], split=found["split"] or "test")
    except Exception as error:  # whatever the hub's library raises
        raise InputError(address, f"cannot be loaded: {reason(error)}") from error
    path = folder / f"{found['name'].replace('/', '-')}.parquet"
    data.to_parquet(path)
    return path
