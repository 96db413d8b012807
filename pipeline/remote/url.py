"""URLs of files and folders: text enters, a `Url` leaves, or an error about what is wrong with it. Nothing is opened.

A URL holds no credentials and no options: they come from the environment, so that they are in no log and in no `run.json`.
"""

import re

from msgspec import Struct

from pipeline.errors import UsageError

SCHEMES = {"s3": "s3://BUCKET/PATH", "gs": "gs://BUCKET/PATH"}
"""Amazon S3, or any server that speaks its protocol, and Google Cloud Storage, with the form of their URLs."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


class Url(Struct, frozen=True):
    """A place in an object store."""

    scheme: str
    bucket: str
    key: str
    """The path in the bucket, without a slash at its ends; empty for the bucket itself."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}".rstrip("/")


def is_url(text: str) -> bool:
    """True if `text` is a URL, of whatever scheme."""
    return _URL.match(text) is not None


def parse_url(text: str) -> Url:
    """The place in a store that a URL names. Raises `UsageError`, without what may be a secret."""
    found = _URL.fullmatch(text)
    if found is None or found[1].lower() not in SCHEMES:
        raise UsageError(f"{text}: unknown scheme {found[1] if found else ''!r}; expected {' or '.join(SCHEMES.values())}")
    scheme, (bucket, _, path) = found[1].lower(), found[2].partition("/")
    if "@" in bucket or re.search(r"\?[\w-]+=", path):
        bare = f"{scheme}://{bucket.rpartition('@')[2]}/{path.partition('?')[0]}"
        raise UsageError(f"{bare}: a URL holds no credentials and no options; set them in the environment (guides/object-stores)")
    if not re.fullmatch(r"[\w.-]+", bucket, re.ASCII):
        raise UsageError(f"{text}: {bucket!r} is not a bucket name; expected {SCHEMES[scheme]}")
    key = path.strip("/")
    if key and not {"", ".", ".."}.isdisjoint(key.split("/")):
        raise UsageError(f"{text}: has an empty part, `.` or `..` in its path")
    return Url(scheme, bucket, key)
