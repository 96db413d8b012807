"""What is a URL of a file or folder, and the sentence about what is none."""

import re

import pytest

from pipeline.errors import UsageError
from pipeline.remote.url import Url, is_url, parse_url

SECRET = "a URL holds no credentials and no options; set them in the environment"
WRONG = {
    "ftp://host/x": "unknown scheme 'ftp'; expected s3://BUCKET/PATH or gs://BUCKET/PATH",
    "s3:///x": "'' is not a bucket name; expected s3://BUCKET/PATH",
    "s3://localhost:9000/x": "'localhost:9000' is not a bucket name",
    "s3://bucket/a/../b": "`..` in its path",
    **dict.fromkeys(("s3://AKIA:secret@bucket/x", "s3://AKIA@bucket/x", "s3://bucket/x?access_key=AKIA&secret_key=secret"), SECRET),
}


def test_a_url_is_a_place_in_a_store_and_a_path_is_none() -> None:
    assert parse_url("S3://bucket/runs/one/") == Url("s3", "bucket", "runs/one")
    assert parse_url("gs://my.bucket-1") == Url("gs", "my.bucket-1", "")
    assert parse_url("s3://bucket/data/part-?.parquet") == Url("s3", "bucket", "data/part-?.parquet")
    assert not any(map(is_url, ("data.parquet", "C:/data", "replay:runs/one", "/a/b", "-")))


@pytest.mark.parametrize(("text", "sentence"), WRONG.items())
def test_what_is_wrong_with_a_url_is_said_without_its_secrets(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)) as error:
        parse_url(text)
    assert not any(secret in str(error.value) for secret in ("AKIA", "=secret", "x?"))
