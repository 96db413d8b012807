"""What is a URL of a file or folder, and the sentence about what is none."""

import re
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.remote.url import Url, is_url, parse_url

PLACES = {
    "s3://bucket/runs/one": Url("s3", "bucket", "runs/one"),
    "S3://bucket/runs/one/": Url("s3", "bucket", "runs/one"),
    "gs://my.bucket-1": Url("gs", "my.bucket-1", ""),
    "s3://bucket/data/part-?.parquet": Url("s3", "bucket", "data/part-?.parquet"),
    "file:///data/a%20b.csv": Path("/data/a b.csv"),
    "file://localhost/data": Path("/data"),
}
WRONG = {
    "ftp://host/x": "unknown scheme 'ftp'; expected s3://BUCKET/PATH, gs://BUCKET/PATH, file:///PATH",
    "s3:///x": "'' is not a bucket name; expected s3://BUCKET/PATH",
    "s3://localhost:9000/x": "'localhost:9000' is not a bucket name",
    "s3://bucket/a/../b": "`..` in its path",
    "file://host/x": "is on another machine; expected file:///PATH",
    "s3://bucket/x?endpoint_override=localhost:9000": "holds no credentials and no options; set them in the environment",
}
SECRET = "a URL holds no credentials and no options"
WRONG |= dict.fromkeys(("s3://AKIA:secret@bucket/x", "s3://AKIA@bucket/x", "s3://bucket/x?access_key=AKIA&secret_key=secret"), SECRET)


@pytest.mark.parametrize(("text", "found"), PLACES.items())
def test_a_url_is_a_place_in_a_store_or_a_path(text: str, found: Url | Path) -> None:
    assert (is_url(text), parse_url(text)) == (True, found)


@pytest.mark.parametrize(("text", "sentence"), WRONG.items())
def test_what_is_wrong_with_a_url_is_said_without_its_secrets(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)) as error:
        parse_url(text)
    assert not any(secret in str(error.value) for secret in ("AKIA", "secret", "x?"))


def test_a_path_is_no_url() -> None:
    assert not any(map(is_url, ("data.parquet", "C:/data", "replay:runs/one", "/a/b", "-")))
