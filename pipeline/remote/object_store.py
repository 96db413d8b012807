"""A folder of an object store: names of objects and their bytes enter and leave, errors of the store leave as one error message.

An object is replaced whole or not at all. No rename and no lock is asked of the store, only that a list shows what was written before.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from pipeline.errors import StoreError, reason
from pipeline.remote.environment import endpoint, file_system
from pipeline.remote.url import FROM_ENVIRONMENT, Url

REFUSALS = (
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY_ID",
    "SIGNATURE",
    "INVALID_CLIENT_TOKEN",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "EXPIRED",
)
UNREACHABLE = ("NETWORK_CONNECTION", "UNAVAILABLE", "connect", "resolve host", "Timeout", "timed out", "DEADLINE_EXCEEDED")
NO_BUCKET = ("NO_SUCH_BUCKET", "bucket does not exist", "Bucket '", "bucket was not found")


CHUNK = 8 << 20
"""Bytes that are held in memory of an object on its way."""


class Seen(Struct, frozen=True):
    """An object as a list shows it: another one with the same name has another time."""

    size: int
    mtime_ns: int


class ObjectStore:
    """The objects whose names begin with a URL; the names here are what follows it. Every method raises `StoreError`."""

    def __init__(self, url: Url) -> None:
        self.url = url
        with self._answered():
            self._files = file_system(url)
        self._root = f"{url.bucket}/{url.key}".rstrip("/")

    def list(self, *, below: bool = True) -> dict[str, Seen]:
        """The objects by name, or with `below=False` only those directly in the folder; none where there is no such folder."""
        from pyarrow import fs

        with self._answered():
            try:
                found = self._files.get_file_info(fs.FileSelector(self._root, recursive=below))
            except FileNotFoundError:
                self._check_bucket()
                return {}
        files = [each for each in found if each.type == fs.FileType.File]
        return {each.path[len(self._root) + 1 :]: Seen(each.size, each.mtime_ns or 0) for each in files}

    def kind(self, name: str = "") -> str:
        """`file`, `folder`, or empty where there is neither; an empty `name` is the URL itself."""
        from pyarrow import fs

        with self._answered():
            found = self._files.get_file_info(self._path(name)).type
            if found == fs.FileType.NotFound:
                self._check_bucket()
        return {fs.FileType.File: "file", fs.FileType.Directory: "folder"}.get(found, "")

    def read(self, name: str) -> bytes | None:
        """The content of an object; None where it is not there."""
        with self._answered(name):
            try:
                with self._files.open_input_stream(self._path(name), compression=None) as stream:
                    content: bytes = stream.read()
                    return content
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """Write an object, in place of one with that name."""
        self._write(name, BytesIO(content))

    def upload(self, path: Path, name: str) -> None:
        """Write the file `path` as an object. Raises `OSError` where it cannot be read."""
        with path.open("rb") as file:
            self._write(name, file)

    def download(self, name: str, path: Path) -> None:
        """Write an object, or with an empty name the URL's own, as the file `path`. Raises `OSError` where that cannot be written."""
        with path.open("wb") as file:
            with self._answered(name):
                stream = self._files.open_input_stream(self._path(name), compression=None)
            while content := self._read_some(name, stream):
                file.write(content)

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        with self._answered(name):
            try:
                self._files.delete_file(self._path(name))
            except FileNotFoundError:
                return

    def _write(self, name: str, file: BinaryIO) -> None:
        with self._answered(name):
            stream = self._files.open_output_stream(self._path(name), compression=None)
        while content := file.read(CHUNK):
            with self._answered(name):
                stream.write(content)
        with self._answered(name):
            stream.close()

    def _read_some(self, name: str, stream: Any) -> bytes:
        with self._answered(name):
            content: bytes = stream.read(CHUNK)
            return content

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _check_bucket(self) -> None:
        """Raise where the bucket itself is missing, which a missing object does not show."""
        from pyarrow import fs

        if self._files.get_file_info(self.url.bucket).type == fs.FileType.NotFound:
            raise StoreError(str(self.url), f"there is no bucket {self.url.bucket!r}")

    @contextmanager
    def _answered(self, name: str = "") -> Iterator[None]:
        """Turn errors of the file system into a `StoreError`."""
        where = f"{self.url}/{name}" if name else str(self.url)
        try:
            yield
        except (OSError, ValueError) as error:
            raise self._error(where, error) from error

    def _error(self, where: str, error: Exception) -> StoreError:
        text = str(error)
        if isinstance(error, FileNotFoundError):
            return StoreError(where, "is not there")
        if any(word in text for word in NO_BUCKET):
            return StoreError(where, f"there is no bucket {self.url.bucket!r}")
        code = next((word for word in REFUSALS if word in text.upper()), None)
        if code is not None:
            said = re.search(r"AWS Error (\w+)", text)
            what = f"the store denies access ({said[1] if said else code})"
            return StoreError(where, f"{what}; check {FROM_ENVIRONMENT[self.url.scheme]}")
        if any(word in text for word in UNREACHABLE):
            server = endpoint(self.url)
            return StoreError(where, f"the store{f' at {server}' if server else ''} does not answer ({_detail(text)})", transient=True)
        return StoreError(where, f"the store answers with an error: {_answer(error)}", transient=True)


def _answer(error: Exception) -> str:
    """What the store said, without what pyarrow says before it."""
    return re.sub(r".*?(AWS Error )", r"\1", reason(error))[:200]


def _detail(text: str) -> str:
    """The end of an error's text that says what the connection came to."""
    line: Any = text.strip().splitlines()[0]
    found = re.search(r"(?:curlCode: \d+, |CURL error \[\d+\]=)([^;}]+)", line)
    return found[1].lower() if found else line[:120]
