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

CONNECT_S, REQUEST_S, ATTEMPTS = 5.0, 60.0, 3
"""Most seconds until a server takes a connection and for one request, and how often a request is sent that fails."""
Stamp = tuple[int, int]
"""The size of a file and when it was last changed, ns UTC: another one tells another version."""


class MissingFile(StoreError):
    """There is no file of this name."""


class RemoteFiles:
    """The files whose paths begin with a URL; their names are what follows it. Every method raises `StoreError`."""

    def __init__(self, url: Url) -> None:
        self.url = url
        self._at = "/".join(filter(None, (url.bucket, url.key)))
        with self._answered():
            self._files = _s3() if url.scheme == "s3" else _gs()

    def list(self) -> dict[str, Stamp]:
        """Every file by its name; none where there is no such folder."""
        with self._answered():
            found = self._files.get_file_info(fs.FileSelector(self._at, recursive=True, allow_not_found=True))
            if not found and self._files.get_file_info(self.url.bucket).type == fs.FileType.NotFound:
                raise StoreError(str(self.url), f"there is no bucket {self.url.bucket!r}")
        return {each.path[len(self._at) + 1 :]: (each.size, each.mtime_ns or 0) for each in found if each.is_file}

    def is_file(self) -> bool:
        """True if the URL itself names a file."""
        with self._answered():
            return bool(self._files.get_file_info(self._at).is_file)

    def download(self, name: str, path: Path) -> None:
        """Write a file, or with an empty name the URL's own, as the file `path`; raises `MissingFile` where it is gone."""
        with self._answered(name), self._files.open_input_stream(self._path(name), compression=None) as there, path.open("wb") as here:
            shutil.copyfileobj(there, here, 1 << 20)

    def read(self, name: str) -> bytes:
        """The content of a file; raises `MissingFile`."""
        with self._answered(name), self._files.open_input_stream(self._path(name), compression=None) as there:
            return bytes(there.read())

    def upload(self, name: str, chunks: Iterator[bytes]) -> None:
        """Write a file, over one with that name."""
        with self._answered(name), self._files.open_output_stream(self._path(name), compression=None) as there:
            for chunk in chunks:
                there.write(chunk)

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        with self._answered(name):
            try:
                self._files.delete_file(self._path(name))
            except FileNotFoundError:
                return

    def _path(self, name: str) -> str:
        return f"{self._at}/{name}" if name else self._at

    @contextmanager
    def _answered(self, name: str = "") -> Iterator[None]:
        """Turn errors of the store into a `StoreError`, in its own words; errors of local files stay what they are."""
        where = f"{self.url}/{name}" if name else str(self.url)
        try:
            yield
        except FileNotFoundError as error:
            raise MissingFile(where, "is not there") from error
        except OSError as error:
            if error.filename is not None:
                raise
            said = str(error).partition("AWS Error ")
            raise StoreError(where, (said[2] or said[0]).partition(" (Request ID")[0].partition("\n")[0]) from error


def _s3() -> fs.FileSystem:
    return fs.S3FileSystem(
        anonymous=_is_yes("AWS_NO_SIGN_REQUEST"),
        region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        endpoint_override=os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"),
        connect_timeout=CONNECT_S,
        request_timeout=REQUEST_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    )


def _gs() -> fs.FileSystem:
    # The library itself reads STORAGE_EMULATOR_HOST and GOOGLE_APPLICATION_CREDENTIALS.
    return fs.GcsFileSystem(anonymous=_is_yes("GS_NO_SIGN_REQUEST"))


def _is_yes(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in ("yes", "true", "1")
