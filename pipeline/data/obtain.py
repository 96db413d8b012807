"""Problems that are no files yet: stdin, data sets of the hub and URLs enter, paths of files leave."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from io import BytesIO
from lzma import LZMAError
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from pipeline.data.text_files import opened
from pipeline.errors import InputError, MissingExtra, reason

STDIN = "-"
_NAME = r"[A-Za-z0-9](?:[\w-]|\.(?!\.))*"
HUB = re.compile(rf"hf://(?P<name>{_NAME}(?:/{_NAME})?)(?:@(?P<revision>[\w./-]+?))?(?::(?P<config>\w[\w.-]*))?(?:/(?P<split>\w[\w.-]*))?")
"""`hf://OWNER/NAME`, with `@REVISION`, `:CONFIG` and `/SPLIT`."""
NEWEST = "its newest revision, whose commit the library does not report"
SNIFFED = 1 << 16
"""Bytes of stdin that are looked at to tell its format."""
Fetch = Callable[[str, Path], Path]
"""Gives the path of what a URL names, which is in an empty folder where it had to be downloaded."""
Tell = Callable[[str], None]
"""Receives a notice for the user."""


@contextmanager
def problem_files(inputs: Sequence[str], fetch: Fetch, tell: Tell) -> Iterator[list[Path]]:
    """The paths that these inputs of a command name; what is no file is written to one that is there until the block ends.

    `fetch` downloads URLs, and what is chosen of a data set of the hub goes to `tell`. Raises `InputError` for what cannot be read,
    `MissingExtra` for the hub without the package that reads it, and what `fetch` raises.
    """
    if list(inputs).count(STDIN) > 1:
        raise InputError("stdin", "can be read only once; name it once")
    with TemporaryDirectory(prefix="problems-") as folder:
        yield [_file(each, Path(folder, str(place)), fetch, tell) for place, each in enumerate(inputs)]


def _file(text: str, folder: Path, fetch: Fetch, tell: Tell) -> Path:
    """The path of one input; what is no file is written into `folder`, which no other input has."""
    folder.mkdir()
    if text == STDIN:
        return spooled(sys.stdin.buffer, folder)
    if text.startswith("hf://"):
        return downloaded(text, folder, tell)
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
        raise InputError("stdin", f"cannot be stored in {folder}: {reason(error)}") from error
    return path


def _suffix(head: bytes) -> str:
    """What the name of a file ends in that begins so. Compression is told by the first bytes, too, when the file is read."""
    if head.startswith(b"PAR1"):
        return ".parquet"
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return ".arrow"
    with suppress(OSError, EOFError, LZMAError), opened(BytesIO(head), Path("stdin")) as stream:
        start = stream.peek(SNIFFED).removeprefix(b"\xef\xbb\xbf").lstrip()
        return ".json" if start.startswith((b"{", b"[")) else ".csv"
    return ".csv"


def downloaded(address: str, folder: Path, tell: Tell) -> Path:
    """A data set of the hub as a Parquet file of `folder`; which split and revision that is goes to `tell`."""
    found = HUB.fullmatch(address)
    if found is None:
        raise InputError(address, "expected hf://OWNER/NAME, optionally followed by @REVISION, :CONFIG and /SPLIT")
    name, config, revision = found["name"], found["config"], found["revision"]
    if Path(name).exists():
        raise InputError(
            address, f"{name} also exists here and would be read instead of the hub's; give its path, or run from another folder"
        )
    split = found["split"] or _split(address, name, config, revision)
    data = hub_data(address, name, config, split, revision)
    tell(f"{address}: split `{split}`, {_commit(data, name) or (f'revision {revision}' if revision else NEWEST)}")
    path = folder / f"{name.replace('/', '-')}.parquet"
    data.to_parquet(path)
    return path


def hub_data(where: str, name: str, config: str | None, split: str, revision: str | None) -> Any:
    """A split of a data set of the hub, downloaded or from the cache of the library `datasets`.

    Raises `MissingExtra` without that, and `InputError` without the data.
    """
    load = _library(where).load_dataset
    try:
        return load(name, config, split=split, revision=revision)
    except Exception as error:  # whatever its HTTP client, its file systems and its formats raise
        raise InputError(where, f"cannot be loaded: {reason(error).rstrip('.')}; or download it and give the file") from error


def _split(address: str, name: str, config: str | None, revision: str | None) -> str:
    """The split that is taken where none is named: the only one, or `test`; raises `InputError` where there are others alone."""
    try:
        splits = [str(each) for each in _library(address).get_dataset_split_names(name, config, revision=revision)]
    except Exception as error:  # whatever the hub's library raises
        raise InputError(address, f"cannot be loaded: {reason(error)}") from error
    if len(splits) > 1 and "test" not in splits:
        raise InputError(address, f"has the splits {', '.join(splits)}; choose one: {address}/{splits[0]}")
    return "test" if "test" in splits else splits[0]


def _commit(data: Any, name: str) -> str:
    """Which commit was loaded, as far as the library says so: it is in the addresses of the files; empty where it is not."""
    sums = getattr(getattr(data, "info", None), "download_checksums", None) or {}
    commits = {found[1] for url in sums if (found := re.search(rf"{re.escape(name)}(?:@|/resolve/)([0-9a-f]{{40}})", str(url)))}
    return f"commit {commits.pop()}" if len(commits) == 1 else ""


def _library(where: str) -> Any:
    try:
        library = import_module("datasets")
        _ = library.load_dataset
    except (ImportError, AttributeError) as error:  # AttributeError: where it is not installed, a folder `datasets` passes for it
        raise MissingExtra(where, "datasets", "data") from error
    return library
