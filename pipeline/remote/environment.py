"""What the environment says about object stores: variables enter, a file system of pyarrow leaves. No other source has credentials.

pyarrow alone would ask the metadata service of the cloud where it finds no credentials, which takes seconds on other machines and then
says nothing of them. So that service is asked only where a variable says so.
"""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from pipeline.errors import StoreError
from pipeline.proxies import ask_directly
from pipeline.remote.url import Url

CONNECT_S, ANSWER_S = 5.0, 20.0
"""Most seconds until a server takes a connection, and in which it sends nothing."""
ATTEMPTS = 3
"""How often pyarrow itself sends a request that failed, within about a second."""
S3_SOURCES = (
    "AWS_PROFILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""Variables that say where credentials are, other than those that hold them."""
NO_S3 = (
    "no credentials in the environment; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    " (AWS_EC2_METADATA_DISABLED=false for the role of the machine, AWS_NO_SIGN_REQUEST=yes for a public bucket)"
)
NO_GS = (
    "no credentials in the environment; set GOOGLE_APPLICATION_CREDENTIALS to a file of them"
    " (NO_GCE_CHECK=false for the account of the machine, GS_NO_SIGN_REQUEST=yes for a public bucket)"
)


def file_system(url: Url) -> Any:
    """The pyarrow file system of a URL; raises `StoreError` where there are no credentials, `OSError` where there is no such bucket."""
    return _s3(url) if url.scheme == "s3" else _gs(url)


def endpoint(url: Url) -> str:
    """The address of the server of a URL, where the environment names one; else empty."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") if url.scheme == "s3" else ("STORAGE_EMULATOR_HOST",)
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _s3(url: Url) -> Any:
    # Not at the start: `import pipeline` does without pyarrow, and most commands do without S3.
    from pyarrow import fs

    environment = os.environ
    anonymous = _says(environment, "AWS_NO_SIGN_REQUEST", "yes", "true", "1")
    if not anonymous and not _has_s3_credentials(environment):
        raise StoreError(str(url), NO_S3)
    if not _says(environment, "AWS_EC2_METADATA_DISABLED", "false", "no", "0"):
        environment["AWS_EC2_METADATA_DISABLED"] = "true"  # the library asks it for the region, too
    server = endpoint(url)
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    return fs.S3FileSystem(
        anonymous=anonymous,
        endpoint_override=server or None,
        region=region or ("us-east-1" if server else fs.resolve_s3_region(url.bucket)),
        connect_timeout=CONNECT_S,
        request_timeout=ANSWER_S,
        allow_delayed_open=True,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    )


def _has_s3_credentials(environment: Mapping[str, str]) -> bool:
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        return True
    if any(environment.get(name) for name in S3_SOURCES) or _says(environment, "AWS_EC2_METADATA_DISABLED", "false", "no", "0"):
        return True
    return Path("~/.aws/credentials").expanduser().is_file()


def _gs(url: Url) -> Any:
    from pyarrow import fs

    environment, server = os.environ, endpoint(url)
    anonymous = bool(server) or _says(environment, "GS_NO_SIGN_REQUEST", "yes", "true", "1")
    if not anonymous and not _has_gs_credentials(environment):
        raise StoreError(str(url), NO_GS)
    scheme, _, host = server.rpartition("://")
    ask_directly(f"http://{host}")
    return fs.GcsFileSystem(
        anonymous=anonymous,
        scheme=(scheme or "http") if server else None,
        endpoint_override=host or None,
        retry_time_limit=timedelta(seconds=ANSWER_S),
    )


def _has_gs_credentials(environment: Mapping[str, str]) -> bool:
    known = Path(environment.get("CLOUDSDK_CONFIG") or "~/.config/gcloud").expanduser() / "application_default_credentials.json"
    named = environment.get("GOOGLE_APPLICATION_CREDENTIALS")
    if named:
        return Path(named).is_file()
    return known.is_file() or bool(environment.get("GCE_METADATA_HOST")) or _says(environment, "NO_GCE_CHECK", "false", "no", "0")


def _says(environment: Mapping[str, str], name: str, *values: str) -> bool:
    return environment.get(name, "").strip().lower() in values
