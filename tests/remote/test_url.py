"""What is a URL of a file or folder, and the sentence about what is none."""

import re
from pathlib import Path

import pytest

from pipeline.errors import UsageError
from pipeline.remote.url import Url, is_url, parse_url


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("s3://bucket/runs/one", Url("s3", "bucket", "runs/one")),
        ("S3://bucket/runs/one/", Url("s3", "bucket", "runs/one")),
        ("gs://my.bucket-1", Url("gs", "my.bucket-1", "")),
        ("s3://bucket/data/part-?.parquet", Url("s3", "bucket", "data/part-?.parquet")),
        ("file:///data/a%20b.csv", Path("/data/a b.csv")),
        ("file://localhost/data", Path("/data")),
    ],
)
def test_a_url_is_a_place_in_a_store_or_a_path(text: str, found: Url | Path) -> None:
    assert is_url(text)
    assert parse_url(text) == found


@pytest.mark.parametrize("text", ["data.parquet", "C:/data", "replay:runs/one", "/a/b", "-"])
def test_a_path_is_no_url(text: str) -> None:
    assert not is_url(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ftp://host/x", "unknown scheme 'ftp'; expected s3://BUCKET/PATH, gs://BUCKET/PATH, file:///PATH"),
        ("s3://", "'' is not a bucket name; expected s3://BUCKET/PATH"),
        ("s3:///x", "'' is not a bucket name"),
        ("s3://localhost:9000/x", "'localhost:9000' is not a bucket name"),
        ("s3://bucket/a/../b", "`..` in its path"),
        ("s3://bucket/a//b", "has an empty part"),
        ("file://host/x", "is on another machine; expected file:///PATH"),
        ("s3://bucket/x?endpoint_override=localhost:9000", "holds no credentials and no options; set them in the environment"),
    ],
)
def test_what_is_wrong_with_a_url(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        parse_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIAEXAMPLE:verysecret@bucket/x",
        "s3://AKIAEXAMPLE@bucket/verysecret",
        "s3://bucket/x?access_key=AKIAEXAMPLE&secret_key=verysecret",
        "gs://bucket/x?access_token=verysecret",
        "s3://bucket/x?X-Amz-Security-Token=verysecret&X-Amz-Signature=AKIAEXAMPLE",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError, match="a URL holds no credentials and no options") as error:
        parse_url(text)
    assert "AKIAEXAMPLE" not in str(error.value)
    assert "x?" not in str(error.value)
