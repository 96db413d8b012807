"""The files below a URL, by name: bytes enter and leave, and every failure leaves as one `StoreError`. The only module that opens a store.

A file is replaced whole or not at all. Credentials come from the environment, as the SDKs of Amazon and Google find them.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarrow import fs

from pipeline.errors import StoreError
from pipeline.remote.url import Url

CONNECT_S, REQUEST_S = 5.0, 60.0
"""Most seconds until a server takes a connection, and for one request."""
Stamp = tuple[int, int]
"""The size of a file and when it was last changed, ns UTC: another one tells another version."""


class MissingFile(StoreError):
    """There is no file of this name."""


class RemoteFiles:
    """The files whose paths begin with a URL; their names are what follows it. Every method raises `StoreError`."""

    def __init__(self, url: Url) -> None:
        self.url, self._at = url, f"{url.bucket}/{url.key}".rstrip("/")
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        with self._answered():
            if url.scheme == "s3":
                self._files = fs.S3FileSystem(endpoint_override=endpoint, connect_timeout=CONNECT_S, request_timeout=REQUEST_S)
            else:
                self._files = fs.GcsFileSystem()

    def list(self) -> dict[str, Stamp]:
        """Every file by its name; none where there is no such folder."""
        with self._answered():
            found = self._files.get_file_info(fs.FileSelector(self._at, recursive=True, allow_not_found=True))
            if not found and self._files.get_file_info(self.url.bucket).type == fs.FileType.NotFound:
                raise StoreError(str(self.url), f"there is no bucket {self.url.bucket!r}")
        files = {each.path[len(self._at) + 1 :]: (each.size, each.mtime_ns or 0) for each in found if each.is_file}
        if unsafe := next((name for name in files if ".." in name.split("/")), None):
            raise StoreError(str(self.url), f"holds a file {unsafe!r}, which no folder of this machine can hold")
        return files

    def is_file(self) -> bool:
        """True if the URL itself names a file."""
        with self._answered():
            return bool(self._files.get_file_info(self._at).is_file)

    def download(self, name: str, path: Path) -> None:
        """Write a file, or with an empty name the URL's own, as the file `path`; raises `MissingFile` where it is gone."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._answered(name), self._files.open_input_stream(self._path(name), compression=None) as there, path.open("wb") as here:
            shutil.copyfileobj(there, here, 1 << 20)

    def upload(self, name: str, path: Path, size: int) -> None:
        """Write the first `size` bytes of the file `path`, which may grow, over one with that name. Raises `FileNotFoundError`."""
        with path.open("rb") as here, self._answered(name), self._files.open_output_stream(self._path(name), compression=None) as there:
            while size > 0 and (chunk := here.read(min(1 << 20, size))):
                there.write(chunk)
                size -= len(chunk)

    def delete(self, name: str) -> None:
        """Delete a file; raises `MissingFile`."""
        with self._answered(name):
            self._files.delete_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._at}/{name}" if name else self._at

    @contextmanager
    def _answered(self, name: str = "") -> Iterator[None]:
        """Turn errors of the store into a `StoreError`, in its own words; errors of local files stay what they are."""
        try:
            yield
        except OSError as error:
            if error.filename is not None:
                raise
            kind = MissingFile if isinstance(error, FileNotFoundError) else StoreError
            raise kind(f"{self.url}/{name}".rstrip("/"), str(error).partition("\n")[0]) from error
