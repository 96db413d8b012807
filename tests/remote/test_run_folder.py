"""Whole runs whose folder is a URL, the commands that read or write it, and several machines with one folder."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import pipeline as api
from pipeline.errors import StoreError, UsageError
from pipeline.remote import folder as remote
from pipeline.remote.store import RemoteFiles
from pipeline.remote.url import Url
from pipeline.store.rows import CallRow, ChainRow, StepRow
from pipeline.store.run_file import RunFile
from pipeline.store.store import RunStore, read_batches, read_rows
from tests.remote.object_stores import BUCKET, Fault, ObjectServer, tables, way_to
from tests.support.changed import change_rows
from tests.support.commands import pipeline
from tests.support.hanging_together import check_hangs_together
from tests.support.paths import ROOT, SIM, TEST_SET
from tests.support.patience import HANGS_S
from tests.support.runs import said, solve, write_problems

COMMAND = ("run", "speccot", "--engines", SIM)
TIMES = ("submit_unix_ns", "start_unix_ns", "end_unix_ns", "first_token_unix_ns", "created_unix_ns")
SMALL_PARTS = (
    "import pipeline.store.store as store, pipeline.remote.folder as folder;"
    "store.PART_BYTES, folder.EVERY_S = 1 << 18, 0.05;"
    "from pipeline.cli.main import main; main()"
)
CHAINS = 200


class Machines:
    """Tells the commands of a test on which machine they are."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch, self._folder = patch, folder
        self.be("first")

    def be(self, name: str) -> None:
        self._patch.setenv("PIPELINE_STAGING", str(self._folder / name))

    def folder(self, prefix: str) -> Path:
        [found] = [each for each in Path(os.environ["PIPELINE_STAGING"]).glob(f"*/{prefix}") if each.is_dir()]
        return found


@pytest.fixture(name="machines", autouse=True)
def _machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machines:
    return Machines(monkeypatch, tmp_path / "machines")


@pytest.fixture(name="url")
def _url(store: ObjectServer, prefix: str) -> str:
    return f"s3://{BUCKET}/{prefix}"


@pytest.fixture(name="stored")
def _stored(url: str, machines: Machines, tmp_path: Path) -> str:
    """The URL of a finished run of another machine."""
    done = pipeline(*COMMAND, "--input", write_problems(tmp_path), "--output", url)
    assert done.returncode == 0, done.stderr
    machines.be("second")
    return url


@pytest.mark.slow
def test_a_run_has_the_rows_of_one_with_a_local_folder(
    store: ObjectServer, prefix: str, url: str, machines: Machines, tmp_path: Path
) -> None:
    problems = write_problems(tmp_path)
    done = pipeline(*COMMAND, "--input", problems, "--output", url)
    assert done.returncode == 0, done.stderr
    assert f"everything  pipeline view {url}" in done.stdout
    here, there = solve(tmp_path, prefix, input=problems).folder, machines.folder(prefix)
    assert here is not None
    assert tables(there, *TIMES) == tables(here, *TIMES)
    files = {path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file()} - {"run.lock"}
    assert store.names(prefix) == sorted(files)
    for name in files:
        assert store.read(f"{prefix}/{name}") == (there / name).read_bytes()


@pytest.mark.slow
def test_every_command_reads_a_url(stored: str, prefix: str, tmp_path: Path) -> None:
    for command, expected in {
        ("show", stored): "12 of 12 solved",
        ("export", stored, "-o", tmp_path / "answers.csv"): "12 problems",
        ("compare", stored): "speccot",
        ("show", stored, "--follow"): f"{prefix}: finished, 12/12 chains",
    }.items():
        done = pipeline(*command)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout, command


@pytest.mark.slow
def test_what_a_command_writes_is_uploaded(store: ObjectServer, stored: str, prefix: str, machines: Machines) -> None:
    def answers() -> list[object]:
        return [json.loads(line)["correct"] for line in pipeline("export", stored, "-o", "-").stdout.splitlines()]

    before = answers()
    change_rows(machines.folder(prefix), "chains", lambda row: {"correct": not row["correct"]})
    for path in (machines.folder(prefix) / "chains").iterdir():
        store.write(f"{prefix}/chains/{path.name}", path.read_bytes())
    done = pipeline("grade", stored)
    assert "12 verdicts changed" in done.stdout, done.stderr
    for machine in ("first", "second", "third"):
        machines.be(machine)
        assert answers() == before
        assert pipeline("show", stored).returncode == 0
    assert "run.lock" not in store.names(prefix)


@pytest.mark.slow
def test_a_report_of_a_url_is_written_here(stored: str, tmp_path: Path) -> None:
    done = pipeline("view", stored, "-o", "report.html", cwd=tmp_path)
    assert done.stdout.startswith("page: report.html ("), done.stderr
    assert "<html" in (tmp_path / "report.html").read_text()[:1000]


@pytest.mark.slow
def test_shards_are_merged_by_url(url: str, tmp_path: Path) -> None:
    problems = write_problems(tmp_path, 24)
    shards = [f"{url}/shard-{index}" for index in range(2)]
    for index, shard in enumerate(shards):
        assert pipeline(*COMMAND, "--input", problems, "--shard", f"{index}/2", "--output", shard).returncode == 0
    done = pipeline("merge", *shards, "--output", f"{url}/all")
    assert (done.returncode, done.stdout) == (0, f"{url}/all: 2 shards, 24 problems, 24 chains\n"), done.stderr
    assert pipeline("show", f"{url}/all").returncode == 0


@pytest.mark.slow
def test_the_python_api_takes_urls(store: ObjectServer, prefix: str, url: str, tmp_path: Path) -> None:
    store.write(f"{prefix}/problems.jsonl", write_problems(tmp_path).read_bytes())
    problems, run = f"{url}/problems.jsonl", f"{url}/run"
    found = api.solve("speccot", problems, engines=SIM, output=run)
    assert (len(found), found.run.options.input[0], store.status(f"{prefix}/run")) == (12, problems, "finished")
    assert api.solve("speccot", problems, engines=SIM, output=run, resume=True).chains == found.chains
    with pytest.raises(UsageError, match=f"{run}: already contains a run"):
        api.solve("speccot", problems, engines=SIM, output=run)
    with pytest.raises(StoreError, match="there is no bucket 'nobody'"):
        api.solve("speccot", "s3://nobody/x.csv", engines=SIM)


@pytest.mark.slow
def test_a_url_of_a_file_is_a_path(tmp_path: Path) -> None:
    problems = write_problems(tmp_path)
    done = pipeline(*COMMAND, "--input", f"file://{problems}", "--output", f"file://{tmp_path}/runs/one")
    assert done.returncode == 0, done.stderr
    assert RunFile.read(tmp_path / "runs/one").options.input == (f"file://{problems}",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("s3://nobody/run", "s3://nobody/run: there is no bucket 'nobody'"),
        ("s3://runs", "s3://runs: names a bucket; expected a folder in it, such as s3://BUCKET/runs/mine"),
        ("s3://runs/theirs", "s3://runs/theirs: holds other files and no run; choose another URL with --output"),
        ("s3://runs/ours", "s3://runs/ours: already contains a run; add --resume to resume it, or choose another URL with --output"),
    ],
)
def test_what_no_run_can_be_written_to(store: ObjectServer, tmp_path: Path, output: str, sentence: str) -> None:
    store.write("theirs/part-00000.parquet", b"of somebody else")
    store.write("ours/run.json", b"{}")
    done = pipeline(*COMMAND, "--input", write_problems(tmp_path), "--output", output)
    assert (done.returncode, done.stderr) == (2, f"error: {sentence}\n")
    assert store.names("theirs") == ["part-00000.parquet"]


@pytest.mark.parametrize("command", [("view",), ("resume",), ("show",)])
def test_a_url_without_a_run(url: str, store: ObjectServer, prefix: str, command: tuple[str, ...]) -> None:
    done = pipeline(*command, f"{url}/none")
    assert done.returncode == 2
    assert re.match(rf"error: {re.escape(url)}/none(/run.json)?: .*; expected a (run folder|folder with a run.json)\n", done.stderr)
    assert store.names(prefix) == []


def test_a_command_for_paths_of_this_machine(url: str) -> None:
    done = pipeline("export", "x", "-o", url)
    assert done.returncode == 2
    assert f"{url}: a URL, where only a path of this machine can be used" in done.stderr


def check_chains_are_whole(folder: Path) -> int:
    """Every chain in the folder has the calls and steps that it counts; the number of chains."""
    found = {
        table: [row for batch in read_batches(folder, table, ["chain_id", *more]) for row in batch.to_pylist()]
        for table, more in {"calls": (), "steps": ("step_index",), "chains": ("calls", "steps")}.items()
    }
    calls = Counter(row["chain_id"] for row in found["calls"])
    steps = Counter(row["chain_id"] for row in found["steps"] if row["step_index"])
    for row in found["chains"]:
        assert (calls[row["chain_id"]], steps[row["chain_id"]]) == (row["calls"], row["steps"])
    return len(found["chains"])


@pytest.mark.slow
def test_at_every_moment_the_copy_has_whole_chains(
    store: ObjectServer, prefix: str, machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain is written before each request of an upload, and another machine downloads after it."""
    monkeypatch.setattr("pipeline.store.store.PART_BYTES", 1 << 16)
    run = solve(tmp_path, "run", input=write_problems(tmp_path, 40)).folder
    assert run is not None
    url = Url("s3", BUCKET, prefix)
    copy = remote._RunCopy(url, print)
    machines.be("second")
    other, seen = remote._RunCopy(url, lambda text: None), set[int]()
    kinds = {"calls": CallRow, "steps": StepRow, "chains": ChainRow}
    rows = {table: read_rows(run, kind, table) for table, kind in kinds.items()}
    chains = iter(rows["chains"])
    copy.folder.mkdir(parents=True)
    shutil.copy(run / "run.json", copy.folder)
    writer = RunStore(copy.folder)
    upload = RemoteFiles.upload

    def write_and_look(files: RemoteFiles, name: str, chunks: Iterator[bytes]) -> None:
        if (chain := next(chains, None)) is not None:
            for table in kinds:
                writer.append(table, [row for row in rows[table] if row.chain_id == chain.chain_id])
            writer.make_parts()
        upload(files, name, chunks)
        with suppress(StoreError):  # nothing is there yet
            other.fetch()
            seen.add(check_chains_are_whole(other.folder))

    monkeypatch.setattr(RemoteFiles, "upload", write_and_look)
    while max(seen, default=0) < 30:
        copy._upload()
    assert len(seen) > 3


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> object:
    """What the chains of the run say that nobody kills."""
    return said(solve(tmp_path_factory.mktemp("whole"), input=TEST_SET, limit=CHAINS, batch_size=16))


@pytest.fixture(name="killed")
def _killed(store: ObjectServer, prefix: str, url: str, machines: Machines, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a run whose process was killed on the first machine when some chains were in the store.

    The way drops an upload that the kill cuts, as a real store does; the server here keeps the half.
    """
    arguments = (*COMMAND, "--input", TEST_SET, "--limit", CHAINS, "--batch-size", 16, "--output", url)
    with way_to(store) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)
        process = subprocess.Popen([sys.executable, "-c", SMALL_PARTS, *map(str, arguments)], cwd=ROOT, stderr=subprocess.DEVNULL)
        try:
            for _ in range(int(HANGS_S / 0.02)):
                if "chains/wal-00000.arrows" in store.names(prefix) and "calls/part-00000.parquet" in store.names(prefix):
                    break
                assert process.poll() is None
                threading.Event().wait(0.02)
        finally:
            process.kill()
            process.wait()
        assert store.status(prefix) == "running"
        yield url


def check_resumed(url: str, store: ObjectServer, prefix: str, machines: Machines, whole: object) -> None:
    """The run goes on and is the one that nobody kills."""
    done = pipeline("resume", url)
    assert done.returncode == 0, done.stderr
    here = machines.folder(prefix)
    assert ([session.status for session in RunFile.read(here).sessions], store.status(prefix)) == (["killed", "finished"], "finished")
    assert said(SimpleNamespace(folder=here)) == whole  # type: ignore[arg-type]
    assert "run.lock" not in store.names(prefix)
    machines.be("a reader")
    assert pipeline("show", url).returncode == 0
    check_hangs_together(machines.folder(prefix), CHAINS)


@pytest.mark.slow
def test_a_killed_run_goes_on_with_its_write_ahead_rows(
    killed: str, store: ObjectServer, prefix: str, machines: Machines, whole: object
) -> None:
    assert [*machines.folder(prefix).glob("*/wal-*.arrows")]
    check_resumed(killed, store, prefix, machines, whole)


@pytest.mark.slow
def test_a_killed_run_is_continued_by_another_machine(
    killed: str, store: ObjectServer, prefix: str, machines: Machines, whole: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.be("second")
    assert pipeline("show", killed).stdout.startswith("")
    assert check_chains_are_whole(machines.folder(prefix))
    refused = pipeline("resume", killed)
    what = r"another machine is at work in it: its run.json was written \d+ s ago; wait for its end, or 180 s if that machine is gone"
    assert re.fullmatch(rf"error: {killed}: {what}\n", refused.stderr), refused.stderr
    monkeypatch.setattr(remote, "ALIVE_S", 0.0)
    check_resumed(killed, store, prefix, machines, whole)

    machines.be("first")
    assert pipeline("resume", killed).returncode == 0  # the run of the second machine is brought here
    assert said(SimpleNamespace(folder=machines.folder(prefix))) == whole  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_run_that_another_machine_has_continued_is_left_alone(
    store: ObjectServer, prefix: str, url: str, machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "EVERY_S", 0.01)
    theirs = json.dumps({"folder_id": "x", "status": "running", "sessions": [{"started_unix_ns": 7}]}).encode()
    with way_to(store) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)

        def continued(count: int) -> Fault:
            if "run.json" in "".join(way.requests[-2:-1]) and "run.json" not in way.requests[-1]:
                store.write(f"{prefix}/run.json", theirs)
            return ""

        way.fault_after = continued
        done = pipeline(*COMMAND, "--input", TEST_SET, "--output", url)
    what = "another machine has continued the run, and nothing more is uploaded from this one"
    assert (done.returncode, f"error: {url}: {what}; the rows of this machine are in" in done.stderr) == (1, True), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["reset", "error"])
def test_a_store_that_fails_leaves_the_run_here_until_it_is_back(
    store: ObjectServer, prefix: str, url: str, machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr("pipeline.remote.folder.LAST_RETRY_S", 0.1)
    with way_to(store) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)
        way.fault_after = lambda count: fault if count > 6 else ""
        done = pipeline(*COMMAND, "--input", write_problems(tmp_path), "--output", url)
        assert done.returncode == 1
        here = machines.folder(prefix)
        what = rf"not everything is uploaded: .*; the run is whole in {here}, and `pipeline resume {url}` uploads the rest"
        assert re.fullmatch(rf"error: {url}: {what}", done.stderr.splitlines()[-1]), done.stderr
        way.fault_after = lambda count: ""
        done = pipeline("resume", url)
        assert done.returncode == 0, done.stderr
        assert f"{url} is finished: there is nothing to resume" in done.stderr
    assert store.status(prefix) == "finished"


@pytest.mark.slow
def test_a_machine_whose_copy_is_older_gets_the_newer_one(url: str, prefix: str, machines: Machines, tmp_path: Path) -> None:
    problems = write_problems(tmp_path)
    for machine, limit in (("first", 4), ("second", 8), ("first", 12)):
        machines.be(machine)
        done = pipeline(*COMMAND, "--input", problems, "--limit", str(limit), "--allow-drift", "limit", "--resume", "--output", url)
        assert done.returncode == 0, done.stderr
    check_hangs_together(machines.folder(prefix), 12)
    assert len(RunFile.read(machines.folder(prefix)).sessions) == 3
