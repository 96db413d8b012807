"""Credentials come from the environment, and where there are none that is said at once."""

import pytest

from pipeline.errors import StoreError
from pipeline.remote.object_store import ObjectStore
from pipeline.remote.url import Url
from tests.support.object_stores import BUCKET, ObjectServer

S3, GS = Url("s3", BUCKET, "x"), Url("gs", BUCKET, "x")


@pytest.mark.parametrize("missing", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_s3_without_credentials(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.delenv(missing)
    with pytest.raises(StoreError, match=f"s3://{BUCKET}/x: no credentials in the environment; set AWS_ACCESS_KEY_ID"):
        ObjectStore(S3)


def test_gs_without_credentials() -> None:
    with pytest.raises(StoreError, match="no credentials in the environment; set GOOGLE_APPLICATION_CREDENTIALS"):
        ObjectStore(GS)


def test_credentials_of_gs_are_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere.json")
    with pytest.raises(StoreError, match="no credentials in the environment"):
        ObjectStore(GS)


def test_a_public_bucket_needs_none(store: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    store.client.put_object(Bucket=BUCKET, Key="public/x", Body=b"read me", ACL="public-read")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "yes")
    assert ObjectStore(Url("s3", BUCKET, "public")).read("x") == b"read me"


def test_another_variable_may_say_where_credentials_are(store: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    ObjectStore(S3)
