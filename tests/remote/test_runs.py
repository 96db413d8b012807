"""Runs whose folder or input is a URL, on one machine and on several, against a real server."""

import json
import logging
import re
import shutil
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pipeline as api
from pipeline.data.files import files_of
from pipeline.errors import RunFolderError, StoreError, UsageError
from pipeline.remote import folder as remote
from pipeline.remote.inputs import fetch_problems
from pipeline.remote.store import RemoteFiles
from pipeline.remote.url import Url, is_url, parse_url
from pipeline.store.rows import CallRow, ChainRow, StepRow
from pipeline.store.run_file import RunFile
from pipeline.store.store import RunStore, read_rows
from tests.support.commands import pipeline
from tests.support.hanging_together import check_hangs_together
from tests.support.paths import ROOT, SIM, TEST_SET
from tests.support.runs import said, solve, write_problems

COMMAND = ("run", "speccot", "--engines", SIM)
CHAINS = 200
SMALL_PARTS = (
    "import pipeline.store.store as store, pipeline.remote.folder as folder;"
    "store.PART_BYTES, folder.EVERY_S = 1 << 18, 0.05;"
    "from pipeline.cli.main import main; main()"
)


@pytest.fixture(scope="session", name="server")
def _server() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import boto3
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        url = "http://{}:{}".format(*server.get_host_and_port())
        client = boto3.client("s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test")
        client.create_bucket(Bucket="runs")
    yield client
    server.stop()


@pytest.fixture(name="store")
def _store(server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A client of the server, which the environment names."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    given = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
    given |= {"AWS_ENDPOINT_URL": server.meta.endpoint_url, "HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "first")}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture(name="url")
def _url(store: Any, request: pytest.FixtureRequest) -> str:
    """A folder of the bucket that no other test has."""
    return "s3://runs/" + "".join(char if char.isalnum() else "-" for char in request.node.nodeid.partition("::")[2])


def names(store: Any, url: str) -> list[str]:
    """The names of the objects below `url`, without it."""
    prefix = f"{parse_url(url).key}/"
    return sorted(each["Key"].removeprefix(prefix) for each in store.list_objects_v2(Bucket="runs", Prefix=prefix).get("Contents", []))


def put(store: Any, url: str, **files: bytes) -> None:
    for name, content in files.items():
        store.put_object(Bucket="runs", Key=f"{parse_url(url).key}/{name}", Body=content)


def copy_of(url: str, cache: Path) -> Path:
    """The copy of a run on the machine whose folder for copies is `cache`."""
    return cache / "speculative-pipeline/runs/s3/runs" / parse_url(url).key


def test_a_url_is_a_place_in_a_store_and_a_path_is_none() -> None:
    """Sentences about wrong ones are in `tests/cli/test_refusals.py`."""
    assert parse_url("S3://bucket/runs/one/") == Url("s3", "bucket", "runs/one")
    assert parse_url("gs://my.bucket-1") == Url("gs", "my.bucket-1", "")
    assert parse_url("s3://bucket/data/part-?.parquet") == Url("s3", "bucket", "data/part-?.parquet")
    assert not any(map(is_url, ("data.parquet", "C:/data", "replay:runs/one", "/a/b", "-")))


FOUND: dict[str, list[str] | str] = {
    "a.csv": ["a.csv"],
    "": ["a.csv", "b.csv"],
    "x": ["x/part.csv"],
    "*/part.csv": ["x/part.csv", "y/part.csv"],
    "**/*.csv": ["a.csv", "b.csv", "x/part.csv", "y/part.csv"],
    "c.csv": "there is no such file",
    "*.jsonl": "no file matches this pattern",
    "z": "has no file that ends in .parquet",
}


@pytest.mark.parametrize(("pattern", "found"), FOUND.items())
def test_inputs_are_a_file_a_folder_or_a_pattern(store: Any, url: str, tmp_path: Path, pattern: str, found: list[str] | str) -> None:
    put(store, url, **{name: name.encode() for name in ("b.csv", "a.csv", "a.txt", "y/part.csv", "x/part.csv", "z/notes.txt")})
    if isinstance(found, str):
        with pytest.raises(UsageError, match=found):
            files_of(fetch_problems(f"{url}/{pattern}", tmp_path))
    else:
        assert [file.read_text() for file in files_of(fetch_problems(f"{url}/{pattern}", tmp_path))] == found


def test_a_store_that_fails_says_why(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="there is no bucket 'nobody'"):
        RemoteFiles(Url("s3", "nobody", "x")).list()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match="Could not connect to server"):
        RemoteFiles(Url("s3", "runs", "x")).list()


@pytest.mark.slow
def test_a_run_is_written_read_and_resumed_by_url(store: Any, url: str, tmp_path: Path) -> None:
    put(store, url, **{"problems.jsonl": write_problems(tmp_path).read_bytes()})
    done = pipeline(*COMMAND, f"{url}/problems.jsonl", "--limit", "4", "--output", f"{url}/run")
    assert done.returncode == 0, done.stderr
    here = copy_of(f"{url}/run", tmp_path / "first")
    files = {path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file()} - {"run.lock"}
    assert names(store, f"{url}/run") == sorted(files)
    assert RunFile.read(here).options.input == (f"{url}/problems.jsonl",)
    shutil.rmtree(here)
    done = pipeline("resume", f"{url}/run", "--limit", "12")
    assert done.returncode == 0, done.stderr
    assert said(here) == said(solve(tmp_path, "local", input=tmp_path / "problems.jsonl"))
    for command, expected in {
        ("show", f"{url}/run"): "12 of 12 solved",
        ("export", f"{url}/run", "-o", tmp_path / "answers.csv"): "12 problems",
    }.items():
        shown = pipeline(*command)
        assert (expected in shown.stdout, shown.returncode) == (True, 0), shown.stderr
    assert "a URL, where only a path of this machine can be used" in pipeline("grade", f"{url}/run").stderr
    missing = pipeline("show", f"{url}/none")
    assert missing.stderr == f"error: {url}/none: there is no run; expected a folder with a run.json\n"
    for output, what in {f"{url}/run": "a run", url: "other files"}.items():
        with pytest.raises(UsageError, match=f"{output}: already holds {what}; choose another URL"):
            api.solve("speccot", ["1+1?"], engines=SIM, output=output)


def test_what_is_not_uploaded_is_uploaded_by_a_resume(store: Any, tmp_path: Path) -> None:
    store.create_bucket(Bucket="gone")
    written = remote.written_folder("s3://gone/run", new=True)
    shutil.copytree(solve(tmp_path, "run", input=write_problems(tmp_path, 2)).folder, written.__enter__())
    store.delete_bucket(Bucket="gone")
    with pytest.raises(RunFolderError, match="not everything is uploaded; `pipeline resume s3://gone/run` uploads the rest of /"):
        written.__exit__(None, None, None)
    store.create_bucket(Bucket="gone")
    with remote.written_folder("s3://gone/run", new=False):
        pass
    with remote.read_folder("s3://gone/run") as there:
        check_hangs_together(there, 2)


def whole_chains(folder: Path) -> int:
    """The number of chains in the folder, each of which has the calls and steps that it counts."""
    calls = Counter(row.chain_id for row in read_rows(folder, CallRow, "calls"))
    steps = Counter(row.chain_id for row in read_rows(folder, StepRow, "steps") if row.step_index)
    chains = [*read_rows(folder, ChainRow, "chains")]
    assert all((calls[row.chain_id], steps[row.chain_id]) == (row.calls, row.steps) for row in chains)
    return len(chains)


@pytest.mark.slow
def test_at_every_moment_the_copy_has_whole_chains(store: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain is written before each request of an upload, and another machine downloads after it."""
    monkeypatch.setattr("pipeline.store.store.PART_BYTES", 1 << 16)
    run = solve(tmp_path, "run", input=write_problems(tmp_path, 40)).folder
    copy, other = (remote._RunCopy(parse_url(url), tmp_path / name) for name in ("here", "there"))
    kinds, seen = {"calls": CallRow, "steps": StepRow, "chains": ChainRow}, set[int]()
    rows = {table: read_rows(run, kind, table) for table, kind in kinds.items()}
    chains = iter(rows["chains"])
    copy.folder.mkdir(parents=True)
    shutil.copy(run / "run.json", copy.folder)
    writer, upload = RunStore(copy.folder), RemoteFiles.upload

    def write_and_look(files: RemoteFiles, name: str, path: Path, size: int) -> None:
        if (chain := next(chains, None)) is not None:
            for table in kinds:
                writer.append(table, [row for row in rows[table] if row.chain_id == chain.chain_id])
            writer.make_parts()
        upload(files, name, path, size)
        if "run.json" in names(store, url):
            other.download()
            seen.add(whole_chains(other.folder))

    monkeypatch.setattr(RemoteFiles, "upload", write_and_look)
    while max(seen, default=0) < 30:
        copy.upload()
    assert len(seen) > 3


@pytest.mark.slow
def test_a_killed_run_is_continued_by_another_machine(store: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["run", "speccot", TEST_SET, "--engines", SIM, "--limit", CHAINS, "--batch-size", 16, "--output", url, "--quiet"]
    process = subprocess.Popen([sys.executable, "-c", SMALL_PARTS, *map(str, words)], cwd=ROOT)
    try:
        awaited = {"chains/wal-00000.log", "calls/part-00000.parquet"}
        while not awaited <= {re.sub(r"-[0-9a-f]{6,}", "", name) for name in names(store, url)}:
            assert process.poll() is None
            threading.Event().wait(0.02)
    finally:
        process.kill()
        process.wait()
    assert json.loads(store.get_object(Bucket="runs", Key=f"{parse_url(url).key}/run.json")["Body"].read())["status"] == "running"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
    what = r"another machine is at work in it: its run.json was written \d+ s ago; wait for its end, or 180 s if that machine is gone"
    assert re.fullmatch(rf"error: {url}: {what}\n", pipeline("resume", url).stderr)
    monkeypatch.setattr(remote, "ALIVE_S", 0.0)
    done = pipeline("resume", url)
    assert done.returncode == 0, done.stderr
    assert [session.status for session in RunFile.read(copy_of(url, tmp_path / "second")).sessions] == ["killed", "finished"]
    with remote.read_folder(url) as there:
        check_hangs_together(there, CHAINS)
        assert said(there) == said(solve(tmp_path, "whole", input=TEST_SET, limit=CHAINS, batch_size=16))
