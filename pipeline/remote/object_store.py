"""A folder of an object store: names of objects and their bytes enter and leave, and every failure leaves as one `StoreError`.

An object is replaced whole or not at all, and one may be created only where there is none of its name: of several machines that do
so at the same time one succeeds. Credentials come from the environment. The only module that imports obstore and boto3.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from pipeline.errors import MissingExtra, StoreError
from pipeline.remote.url import FROM_ENVIRONMENT, Url

CHUNK = 8 << 20
"""Bytes of an object that are held in memory on its way."""
CONNECT_S, REQUEST_S, RETRY_S = 5.0, 60.0, 20.0
"""Most seconds until a server takes a connection, for one request, and in which a request that failed is repeated."""
MISSING = "is not there"
NO_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (AWS_NO_SIGN_REQUEST=yes for a public bucket)",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to a file of them"
    " (NO_GCE_CHECK=false for the account of the machine, GS_NO_SIGN_REQUEST=yes for a public bucket)",
}


class MissingObject(StoreError):
    """There is no object of this name."""


class ObjectStore:
    """The objects whose names begin with a URL; the names here are what follows it. Every method raises `StoreError`."""

    def __init__(self, url: Url, retry_s: float = RETRY_S) -> None:
        """`retry_s`: seconds in which a request that failed is repeated. Raises `MissingExtra` without the package for stores."""
        self.url = url
        try:
            import obstore

            self._obstore: Any = obstore
            self._store = _s3(url, retry_s) if url.scheme == "s3" else _gs(url, retry_s)
        except ImportError as error:
            raise MissingExtra(str(url), error.name or "obstore", "remote") from error

    def list(self) -> dict[str, str]:
        """The tag of each object, which no other version of it has, by name."""
        with self._answered():
            found = [each for batch in self._obstore.list(self._store, prefix=self.url.key or None) for each in batch]
        skipped = len(self.url.key) + 1 if self.url.key else 0
        return {each["path"][skipped:]: each["e_tag"] or str(each["last_modified"]) for each in found}

    def is_object(self) -> bool:
        """True if the URL itself names an object."""
        if not self.url.key:
            return False
        with self._answered():
            try:
                self._obstore.head(self._store, self.url.key)
            except FileNotFoundError:
                return False
        return True

    def read(self, name: str) -> bytes | None:
        """The content of an object; None where it is not there."""
        with self._answered(name):
            try:
                return bytes(self._obstore.get(self._store, self._key(name)).bytes())
            except FileNotFoundError:
                return None

    def create(self, name: str, content: bytes) -> bool:
        """Write an object if there is none of its name; False where there is."""
        from obstore.exceptions import AlreadyExistsError

        with self._answered(name):
            try:
                self._obstore.put(self._store, self._key(name), content, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def write(self, name: str, content: bytes | Iterator[bytes]) -> str:
        """Write or replace an object; return its tag."""
        with self._answered(name):
            tag: str = self._obstore.put(self._store, self._key(name), content)["e_tag"]
        return tag

    def download(self, name: str, path: Path) -> str:
        """Write an object, or with an empty name the URL's own, as the file `path`; its tag. Raises `OSError` for the file."""
        with path.open("wb") as file:
            with self._answered(name):
                found = self._obstore.get(self._store, self._key(name))
                chunks = found.stream(min_chunk_size=CHUNK)
            while True:
                with self._answered(name):
                    chunk = next(chunks, None)
                if chunk is None:
                    break
                file.write(chunk)
        return found.meta["e_tag"] or str(found.meta["last_modified"])

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        with self._answered(name):
            try:
                self._obstore.delete(self._store, self._key(name))
            except FileNotFoundError:
                return

    def _key(self, name: str) -> str:
        return "/".join(filter(None, (self.url.key, name)))

    @contextmanager
    def _answered(self, name: str = "") -> Iterator[None]:
        """Turn errors of the store into a `StoreError`."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            what = self._what(error)
            kind = MissingObject if what == MISSING else StoreError
            raise kind(f"{self.url}/{name}" if name else str(self.url), what) from error

    def _what(self, error: Exception) -> str:
        text = str(error)
        code, status = re.search(r"<Code>(\w+)<", text), re.search(r"status code: (\d+ [\w ]+)", text)
        said = code[1] if code else status[1] if status else text.partition("\n")[0][:200]
        if said == "NoSuchBucket" or "bucket does not exist" in text:
            return f"there is no bucket {self.url.bucket!r}"
        if isinstance(error, FileNotFoundError):
            return MISSING
        if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError") or (status and status[1][:3] in ("401", "403")):
            return f"the store denies access ({said}); check {FROM_ENVIRONMENT[self.url.scheme]}"
        if status is None and "HTTP error" in text:
            server = endpoint(self.url)
            how = "no answer in time" if re.search(r"Timeout|TimedOut", text) else "the connection failed"
            return f"the store{f' at {server}' if server else ''} does not answer ({how})"
        return f"the store answers with an error: {said}"


def endpoint(url: Url) -> str:
    """The address of the server of a URL, where the environment names one; else empty."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") if url.scheme == "s3" else ("STORAGE_EMULATOR_HOST",)
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _client(server: str, retry_s: float) -> dict[str, Any]:
    backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2}
    options = {"connect_timeout": timedelta(seconds=CONNECT_S), "timeout": timedelta(seconds=REQUEST_S)}
    return {
        "client_options": {**options, "allow_http": server.startswith("http://")},
        "retry_config": {"max_retries": 1000, "retry_timeout": timedelta(seconds=retry_s), "backoff": backoff},
    }


def _s3(url: Url, retry_s: float) -> Any:
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Store

    # boto3 knows profiles, roles and web identities, which obstore does not.
    session, server = boto3.Session(), endpoint(url)
    given: dict[str, Any] = {"skip_signature": True}
    if not _is_set("AWS_NO_SIGN_REQUEST", "yes", "true", "1"):
        if session.get_credentials() is None:
            raise StoreError(str(url), f"no credentials in the environment; {NO_CREDENTIALS['s3']}")
        given = {"credential_provider": Boto3CredentialProvider(session)}
    region = session.region_name or ("us-east-1" if server else _region(url))
    if server:
        given["endpoint"] = server
    return S3Store(url.bucket, region=region, **given, **_client(server, retry_s))


def _region(url: Url) -> str:
    from pyarrow.fs import resolve_s3_region

    try:
        region: str = resolve_s3_region(url.bucket)
    except OSError as error:
        raise StoreError(str(url), f"cannot find the region of bucket {url.bucket!r}; set AWS_REGION") from error
    return region


def _gs(url: Url, retry_s: float) -> Any:
    from obstore.store import GCSStore

    server = endpoint(url)
    if server and "://" not in server:
        server = f"http://{server}"
    anonymous = bool(server) or _is_set("GS_NO_SIGN_REQUEST", "yes", "true", "1")
    if not anonymous and not _has_gs_credentials():
        raise StoreError(str(url), f"no credentials in the environment; {NO_CREDENTIALS['gs']}")
    given: dict[str, Any] = {"base_url": server} if server else {}
    return GCSStore(url.bucket, skip_signature=anonymous, **given, **_client(server, retry_s))


def _has_gs_credentials() -> bool:
    """True if the environment names credentials. Without them the library asks the metadata service, which other machines lack."""
    if named := os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return Path(named).is_file()
    folder = Path(os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud").expanduser()
    known = (folder / "application_default_credentials.json").is_file()
    return known or bool(os.environ.get("GCE_METADATA_HOST")) or _is_set("NO_GCE_CHECK", "false", "no", "0")


def _is_set(name: str, *values: str) -> bool:
    return os.environ.get(name, "").strip().lower() in values
