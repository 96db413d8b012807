"""Objects by name, and one sentence for every way in which a store fails."""

from pathlib import Path

import pytest

from pipeline.errors import StoreError
from pipeline.remote.object_store import ObjectStore
from pipeline.remote.url import Url
from tests.remote.object_stores import BUCKET, Fault, ObjectServer, way_to
from tests.support.servers import free_port


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.remote.object_store.REQUEST_S", 1.0)


def opened(url: Url) -> ObjectStore:
    return ObjectStore(url, retry_s=0.1)


def test_objects_are_written_listed_read_and_deleted(store: ObjectServer, prefix: str, tmp_path: Path) -> None:
    objects = ObjectStore(Url("s3", BUCKET, prefix))
    assert objects.list() == {}
    tag = objects.write("a/b.bin", b"some bytes")
    assert objects.create("c", b"the first")
    assert not objects.create("c", b"the second")
    assert objects.read("c") == b"the first"
    assert (list(objects.list()), objects.list()["a/b.bin"]) == (["a/b.bin", "c"], tag)
    assert objects.write("a/b.bin", iter([b"others"])) != tag
    objects.download("a/b.bin", tmp_path / "d")
    assert ((tmp_path / "d").read_bytes(), objects.read("e")) == (b"others", None)
    assert (ObjectStore(Url("s3", BUCKET, f"{prefix}/c")).is_object(), objects.is_object()) == (True, False)
    objects.delete("c")
    objects.delete("c")
    assert list(objects.list()) == ["a/b.bin"]


def test_no_such_bucket(store: ObjectServer) -> None:
    with pytest.raises(StoreError, match="s3://nobody/x: there is no bucket 'nobody'"):
        opened(Url("s3", "nobody", "x")).list()


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StoreError, match=r"the store at http://127.0.0.1:\d+ does not answer \(the connection failed\)"):
        opened(Url("s3", BUCKET, "x")).list()


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("reset", "does not answer (the connection failed)"),
        ("error", "answers with an error: 500 Internal Server Error"),
        ("silent", "does not answer (no answer in time)"),
    ],
)
def test_a_server_in_trouble(store: ObjectServer, monkeypatch: pytest.MonkeyPatch, fault: Fault, sentence: str) -> None:
    with way_to(store) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)
        way.fault = fault
        with pytest.raises(StoreError) as error:
            opened(Url("s3", BUCKET, "x")).list()
    assert str(error.value).endswith(sentence)


def test_access_that_is_denied(store: ObjectServer, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(f"{prefix}/x", b"private")
    store.client.put_object(Bucket=BUCKET, Key=f"{prefix}/y", Body=b"read me", ACL="public-read")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "yes")
    anonymous = ObjectStore(Url("s3", BUCKET, prefix))
    with pytest.raises(StoreError, match=r"the store denies access \(403 Forbidden\); check AWS_ACCESS_KEY_ID"):
        anonymous.read("x")
    assert anonymous.read("y") == b"read me"


@pytest.mark.parametrize(
    ("scheme", "variable", "sentence"),
    [("s3", "", "set AWS_ACCESS_KEY_ID"), ("gs", "", "set GOOGLE_APPL"), ("gs", "GOOGLE_APPLICATION_CREDENTIALS", "set GOOGLE_APPL")],
)
def test_no_credentials(monkeypatch: pytest.MonkeyPatch, scheme: str, variable: str, sentence: str) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    if variable:
        monkeypatch.setenv(variable, "/nowhere.json")
    with pytest.raises(StoreError, match=f"{scheme}://{BUCKET}/x: no credentials in the environment; {sentence}"):
        opened(Url(scheme, BUCKET, "x"))


def test_a_profile_has_credentials(store: ObjectServer, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text("[mine]\naws_access_key_id = test\naws_secret_access_key = test\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    assert ObjectStore(Url("s3", BUCKET, prefix)).list() == {}


def test_a_public_bucket_of_google_needs_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GS_NO_SIGN_REQUEST", "yes")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{free_port()}")
    with pytest.raises(StoreError, match="does not answer"):
        opened(Url("gs", BUCKET, "x")).list()
