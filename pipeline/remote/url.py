"""URLs of files and folders: text enters, a `Url` leaves, or an error about what is wrong with it. Nothing is opened.

    s3://BUCKET/PATH      Amazon S3, or any server that speaks its protocol
    gs://BUCKET/PATH      Google Cloud Storage
    file:///PATH          a path of this machine

A URL holds no credentials and no options: they come from the environment, so that they are in no log and in no `run.json`.
"""

import re
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct

from pipeline.errors import UsageError

SCHEMES = {"s3": "s3://BUCKET/PATH", "gs": "gs://BUCKET/PATH", "file": "file:///PATH"}
"""The schemes of files and folders, and the form of their URLs."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


class Url(Struct, frozen=True):
    """A place in an object store."""

    scheme: str
    bucket: str
    key: str
    """The path in the bucket, without a slash at its ends; empty for the bucket itself."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.key.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}" if self.key else f"{self.scheme}://{self.bucket}"


def is_url(text: str) -> bool:
    """True if `text` is a URL, of whatever scheme."""
    return _URL.match(text) is not None


def parse_url(text: str) -> Url | Path:
    """The place in a store that a URL names, of a `file://` URL the path. Raises `UsageError`."""
    found = _URL.fullmatch(text)
    if found is None or found[1].lower() not in SCHEMES:
        raise UsageError(f"{text}: unknown scheme {found[1] if found else ''!r}; expected {', '.join(SCHEMES.values())}")
    scheme, (bucket, _, path) = found[1].lower(), found[2].partition("/")
    if scheme == "file":
        if bucket not in ("", "localhost"):
            raise UsageError(f"{text}: is on another machine; expected {SCHEMES['file']}")
        return Path(f"/{unquote(path)}")
    if "@" in bucket or re.search(r"\?[\w-]+=", path):
        bare = f"{scheme}://{bucket.rpartition('@')[2]}/{path.partition('?')[0]}"
        raise UsageError(f"{bare}: a URL holds no credentials and no options; set them in the environment (guides/object-stores)")
    if not re.fullmatch(r"[\w.-]+", bucket, re.ASCII):
        raise UsageError(f"{text}: {bucket!r} is not a bucket name; expected {SCHEMES[scheme]}")
    key = path.strip("/")
    if key and any(part in ("", ".", "..") for part in key.split("/")):
        raise UsageError(f"{text}: has an empty part, `.` or `..` in its path")
    return Url(scheme, bucket, key)
