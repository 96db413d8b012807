"""At every moment the copy in a store is a run folder that readers can rely on."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import StoreError
from pipeline.remote.object_store import ObjectStore
from pipeline.remote.staging import Staging, State
from pipeline.remote.transfer import download, upload
from pipeline.remote.url import Url
from pipeline.store.checking.fsck import examine
from pipeline.store.checking.inventory import take_inventory
from pipeline.store.events import ChainRow
from pipeline.store.manifest import Manifest
from pipeline.store.run_file import RunFile
from pipeline.store.tables import TraceStore
from tests.support.object_stores import BUCKET, ObjectServer, tables, way_to
from tests.support.runs import solve


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return solve(tmp_path_factory.mktemp("whole")).folder or Path()


@pytest.fixture(name="staging")
def _staging(run: Path, prefix: str, store: ObjectServer) -> Staging:
    """The run in the folder of this machine for a URL that nothing was uploaded to."""
    staging = Staging(Url("s3", BUCKET, prefix))
    shutil.copytree(run, staging.folder)
    return staging


@pytest.fixture(name="elsewhere")
def _elsewhere(staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staging:
    """The folder of another machine for the same URL."""
    monkeypatch.setenv("PIPELINE_STAGING", str(tmp_path / "elsewhere"))
    return Staging(staging.url)


def every_version(server: ObjectServer, staging: Staging, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Upload while every request after the first, the first two, ... fails; a step after each."""
    monkeypatch.setattr("pipeline.remote.environment.ATTEMPTS", 1)
    with way_to(server) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)
        objects, allowed, done = ObjectStore(staging.url), 0, False
        while not done:
            allowed, start = allowed + 1, len(way.requests)
            way.fault_after = lambda count, last=start + allowed: "error" if count >= last else ""  # type: ignore[misc]
            try:
                upload(objects, staging)
                done = True
            except StoreError:
                staging.state = State(str(staging.url))  # as if the process had been killed before it noted anything
            yield


@pytest.mark.slow
def test_an_upload_that_ends_anywhere_leaves_a_consistent_copy(
    staging: Staging, elsewhere: Staging, server: ObjectServer, monkeypatch: pytest.MonkeyPatch, run: Path
) -> None:
    steps, direct = 0, ObjectStore(staging.url)
    for _ in every_version(server, staging, monkeypatch):
        steps += 1
        download(direct, elsewhere)
        found = take_inventory(elsewhere.folder) if elsewhere.folder.exists() else None
        assert found is None or not found.of("missing", "foreign", "damaged", "changed"), found
        if (elsewhere.folder / "run.json").exists():
            assert RunFile.read(elsewhere.folder).status == "finished"
            assert examine(elsewhere.folder).sound
    assert steps > 6
    assert tables(elsewhere.folder) == tables(run)
    assert sorted(elsewhere.files()) == sorted(staging.files()) == server.names(staging.url.key)


def test_what_is_there_is_not_uploaded_or_downloaded_again(staging: Staging, elsewhere: Staging, server: ObjectServer) -> None:
    objects = ObjectStore(staging.url)
    upload(objects, staging)
    assert not staging.changed()
    assert download(objects, elsewhere) == 6
    with way_to(server) as way, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", way.url)
        upload(ObjectStore(staging.url), staging)
        download(ObjectStore(staging.url), elsewhere)
        assert not [request for request in way.requests if "part-" in request or request.startswith("P")]
    assert not elsewhere.is_ahead


def test_write_ahead_rows_stay_and_are_in_no_manifest_of_the_store(staging: Staging, elsewhere: Staging, blank: object, run: Path) -> None:
    objects = ObjectStore(staging.url)
    opened = TraceStore(staging.folder)
    opened.append("chains", [blank(ChainRow)])  # type: ignore[operator]
    assert (staging.folder / "chains/wal-00001.arrows").exists()
    upload(objects, staging)
    assert staging.is_ahead  # of its write-ahead file
    download(objects, elsewhere)
    manifest = Manifest.read(elsewhere.folder)
    assert manifest is not None
    assert list(manifest.tables["chains"]) == ["part-00000.parquet"]
    assert not take_inventory(elsewhere.folder).of("missing")
    opened.close()
    upload(objects, staging)
    download(objects, elsewhere)
    manifest = Manifest.read(elsewhere.folder)
    assert manifest is not None
    assert list(manifest.tables["chains"]) == ["part-00000.parquet", "part-00001.parquet"]


def test_a_part_that_is_removed_here_is_removed_there(staging: Staging, elsewhere: Staging, server: ObjectServer) -> None:
    objects = ObjectStore(staging.url)
    upload(objects, staging)
    download(objects, elsewhere)
    (staging.folder / "problems/part-00000.parquet").unlink()
    (staging.folder / "report.html").write_text("a report")
    upload(objects, staging)
    assert "problems/part-00000.parquet" not in server.names(staging.url.key)
    assert "report.html" in server.names(staging.url.key)
    download(objects, elsewhere)
    assert sorted(elsewhere.files()) == sorted(staging.files())


def test_a_folder_that_is_gone_deletes_nothing_in_the_store(staging: Staging, server: ObjectServer) -> None:
    objects = ObjectStore(staging.url)
    upload(objects, staging)
    there = server.names(staging.url.key)
    shutil.rmtree(staging.folder)
    with pytest.raises(Exception, match=r"run.json: is gone; nothing more is uploaded"):
        upload(objects, staging)
    assert server.names(staging.url.key) == there
