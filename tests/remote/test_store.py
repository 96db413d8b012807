"""Files by name, and one sentence for every way in which a store fails, in its own words."""

from pathlib import Path

import pytest

from pipeline.errors import StoreError
from pipeline.remote.store import MissingFile, RemoteFiles
from pipeline.remote.url import Url
from tests.remote.object_stores import BUCKET, Fault, ObjectServer, way_to
from tests.support.servers import free_port


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.remote.store.REQUEST_S", 1.0)
    monkeypatch.setattr("pipeline.remote.store.ATTEMPTS", 1)


def test_files_are_written_listed_read_and_deleted(store: ObjectServer, prefix: str, tmp_path: Path) -> None:
    files = RemoteFiles(Url("s3", BUCKET, prefix))
    assert files.list() == {}
    files.upload("a/b.bin", iter([b"some ", b"bytes"]))
    files.upload("c", iter([b""]))
    assert {name: size for name, (size, _) in files.list().items()} == {"a/b.bin": 10, "c": 0}
    files.upload("a/b.bin", iter([b"others"]))
    files.download("a/b.bin", tmp_path / "d")
    assert ((tmp_path / "d").read_bytes(), files.read("c")) == (b"others", b"")
    with pytest.raises(MissingFile, match=f"s3://{BUCKET}/{prefix}/e: is not there"):
        files.read("e")
    assert (RemoteFiles(Url("s3", BUCKET, f"{prefix}/c")).is_file(), files.is_file()) == (True, False)
    files.delete("c")
    files.delete("c")
    assert [*files.list()] == ["a/b.bin"]


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StoreError, match=r"NETWORK_CONNECTION during ListObjectsV2 operation: .*Could not connect to server"):
        RemoteFiles(Url("s3", BUCKET, "x")).list()


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("reset", "NETWORK_CONNECTION during ListObjectsV2 operation: .*Empty reply"),
        ("error", "HTTP status 500"),
        ("silent", "NETWORK_CONNECTION during ListObjectsV2 operation: .*Timeout"),
    ],
)
def test_a_server_in_trouble(store: ObjectServer, monkeypatch: pytest.MonkeyPatch, fault: Fault, sentence: str) -> None:
    with way_to(store) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)
        way.fault = fault
        with pytest.raises(StoreError, match=sentence):
            RemoteFiles(Url("s3", BUCKET, "x")).list()


def test_access_that_is_denied(store: ObjectServer, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(f"{prefix}/x", b"private")
    store.client.put_object(Bucket=BUCKET, Key=f"{prefix}/y", Body=b"read me", ACL="public-read")
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "yes")
    anonymous = RemoteFiles(Url("s3", BUCKET, prefix))
    with pytest.raises(StoreError, match="ACCESS_DENIED"):
        anonymous.read("x")
    assert anonymous.read("y") == b"read me"


def test_a_profile_has_credentials(store: ObjectServer, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "credentials").write_text("[mine]\naws_access_key_id = test\naws_secret_access_key = test\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    store.write(f"{prefix}/x", b"private")
    assert RemoteFiles(Url("s3", BUCKET, prefix)).read("x") == b"private"
