"""Objects by name, and one sentence for every way in which a store fails."""

from pathlib import Path

import pytest

from pipeline.errors import StoreError
from pipeline.remote.object_store import ObjectStore
from pipeline.remote.url import Url
from tests.support.object_stores import BUCKET, Fault, ObjectServer, way_to
from tests.support.servers import free_port


def test_objects_are_written_listed_read_and_deleted(store: ObjectServer, prefix: str, tmp_path: Path) -> None:
    objects = ObjectStore(Url("s3", BUCKET, prefix))
    assert objects.list() == {}
    objects.write("a/b.bin", b"some bytes")
    (tmp_path / "c").write_bytes(b"of a file")
    objects.upload(tmp_path / "c", "c")
    assert {name: seen.size for name, seen in objects.list().items()} == {"a/b.bin": 10, "c": 9}
    assert list(objects.list(below=False)) == ["c"]
    objects.download("a/b.bin", tmp_path / "d")
    assert ((tmp_path / "d").read_bytes(), objects.read("c"), objects.read("e")) == (b"some bytes", b"of a file", None)
    assert (objects.kind("c"), objects.kind("a"), objects.kind("e")) == ("file", "folder", "")
    objects.delete("c")
    objects.delete("c")
    assert list(objects.list()) == ["a/b.bin"]


@pytest.mark.parametrize("call", ["list", "kind"])
def test_no_such_bucket(store: ObjectServer, call: str) -> None:
    with pytest.raises(StoreError, match="s3://nobody/x: there is no bucket 'nobody'") as error:
        getattr(ObjectStore(Url("s3", "nobody", "x")), call)()
    assert not error.value.transient


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StoreError, match=r"the store at http://127.0.0.1:\d+ does not answer \(could not connect to server\)") as error:
        ObjectStore(Url("s3", BUCKET, "x")).list()
    assert error.value.transient


@pytest.mark.parametrize(("fault", "sentence"), [("reset", "does not answer"), ("error", "answers with an error")])
def test_a_server_in_trouble(store: ObjectServer, monkeypatch: pytest.MonkeyPatch, fault: Fault, sentence: str) -> None:
    with way_to(store) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)
        way.fault = fault
        with pytest.raises(StoreError, match=sentence) as error:
            ObjectStore(Url("s3", BUCKET, "x")).list()
    assert error.value.transient


def test_a_server_that_says_nothing(store: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.remote.environment.ANSWER_S", 1.0)
    monkeypatch.setattr("pipeline.remote.environment.ATTEMPTS", 1)
    with way_to(store) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)
        way.fault = "silent"
        with pytest.raises(StoreError, match=r"does not answer \(timeout was reached\)"):
            ObjectStore(Url("s3", BUCKET, "x")).list()


def test_access_that_is_denied(store: ObjectServer, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store.write(f"{prefix}/x", b"private")
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "yes")
    with pytest.raises(StoreError, match=r"the store denies access \(ACCESS_DENIED\); check AWS_ACCESS_KEY_ID") as error:
        ObjectStore(Url("s3", BUCKET, prefix)).read("x")
    assert not error.value.transient
