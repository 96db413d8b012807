"""Several machines and one run folder in a store: one of them writes, and what a dead one leaves is taken over without mixing runs."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.store.run_file import RunFile
from tests.support.commands import pipeline
from tests.support.hanging_together import check_hangs_together
from tests.support.object_stores import BUCKET, ObjectServer, way_to
from tests.support.paths import ROOT, SIM, TEST_SET
from tests.support.patience import HANGS_S
from tests.support.runs import said, solve, write_problems

COMMAND = ("run", "speccot", "--engines", SIM)
SMALL_PARTS = (
    "import pipeline.store.tables as store, pipeline.remote.writer as writer;"
    "store.GROUP_ROWS, store.PART_GROUPS, writer.EVERY_S = 32, 4, 0.05;"
    "from pipeline.cli.main import main; main()"
)
CHAINS = 200


class Machines:
    """Tells the commands of a test on which machine they are."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch, self._folder = patch, folder

    def be(self, name: str) -> None:
        self._patch.setenv("PIPELINE_STAGING", str(self._folder / name))

    def folder(self, prefix: str) -> Path:
        [found] = [each for each in Path(os.environ["PIPELINE_STAGING"]).glob(f"*/{prefix}") if each.is_dir()]
        return found


def said_in(folder: Path) -> object:
    """Everything that the chains of a run said."""
    return said(SimpleNamespace(folder=folder))  # type: ignore[arg-type]


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory) -> object:
    """What the chains of the run say that nobody kills."""
    return said(solve(tmp_path_factory.mktemp("whole"), input=TEST_SET, limit=CHAINS, batch_size=16))


@pytest.fixture(name="machines")
def _machines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machines:
    machines = Machines(monkeypatch, tmp_path / "machines")
    machines.be("first")
    return machines


@pytest.fixture(name="url")
def _url(store: ObjectServer, prefix: str) -> str:
    return f"s3://{BUCKET}/{prefix}"


@contextmanager
def in_mid_run(store: ObjectServer, prefix: str, machines: Machines, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A command that writes the run, once some chains are over and some calls are in the store."""
    command = [sys.executable, "-c", SMALL_PARTS, *map(str, arguments)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        waited = threading.Event()
        for _ in range(int(HANGS_S / 0.02)):
            names = store.names(prefix)
            if "run.json" in names and "calls/part-00000.parquet" in names and [*machines.folder(prefix).glob("chains/wal-*.arrows")]:
                break
            assert process.poll() is None, process.stdout.read()
            waited.wait(0.02)
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(name="killed")
def _killed(store: ObjectServer, prefix: str, url: str, machines: Machines) -> str:
    """The URL of a run whose process was killed on the first machine."""
    with in_mid_run(
        store, prefix, machines, *COMMAND, "--input", TEST_SET, "--limit", str(CHAINS), "--batch-size", "16", "--output", url
    ) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert store.status(prefix) == "running"
    assert list(store.writers(prefix).values()) == [b"open\n"]
    return url


@pytest.mark.slow
def test_a_killed_run_goes_on_with_its_write_ahead_rows(
    killed: str, store: ObjectServer, prefix: str, machines: Machines, whole: object
) -> None:
    ahead = [*machines.folder(prefix).glob("*/wal-*.arrows")]
    assert ahead
    check_resumed(killed, store, prefix, machines, whole)


@pytest.mark.slow
def test_a_killed_run_goes_on_on_another_machine(
    killed: str, store: ObjectServer, prefix: str, machines: Machines, whole: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machines.be("second")
    assert pipeline("watch", killed, "--once").stdout.startswith(f"{prefix}: running, ")
    monkeypatch.setattr("pipeline.remote.writer.FRESH_S", 3.0)
    check_resumed(killed, store, prefix, machines, whole)

    machines.be("first")
    refused = pipeline("resume", killed)
    assert refused.returncode == 2
    folder = machines.folder(prefix)
    what = f"has been written by another machine since, and {folder} holds rows that it lacks"
    assert refused.stderr == f"error: {killed}: {what}; to continue from what the store has, remove that folder\n"
    folder.rename(tmp_path / "aside")
    assert pipeline("runs", "check", killed).returncode == 0


def check_resumed(url: str, store: ObjectServer, prefix: str, machines: Machines, whole: object) -> None:
    """The run goes on and is the one that nobody killed."""
    done = pipeline("resume", url)
    assert done.returncode == 0, done.stderr
    check_hangs_together(machines.folder(prefix), CHAINS)
    run = RunFile.read(machines.folder(prefix))
    assert ([session.status for session in run.sessions], store.status(prefix)) == (["killed", "finished"], "finished")
    here = machines.folder(prefix)
    machines.be("a reader")
    assert pipeline("runs", "check", url).returncode == 0
    check_hangs_together(machines.folder(prefix), CHAINS)
    machines.be("second" if "second" in str(here) else "first")
    assert said_in(here) == whole


@pytest.mark.slow
def test_a_run_that_another_machine_goes_on_with_stops_here(
    store: ObjectServer, prefix: str, url: str, machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with way_to(store) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)

        def take_over(count: int) -> str:
            if store.names(prefix) and f"{prefix}/.writer-other" not in store.writers(prefix):
                for name in store.writers(prefix):
                    store.delete(name)
                store.write(f"{prefix}/.writer-other", b"open\n")
            return ""

        way.fault_after = take_over  # type: ignore[assignment]
        done = pipeline(*COMMAND, "--input", write_problems(tmp_path), "--output", url)
    assert done.returncode == 1
    what = "another machine has taken the run over, and nothing more is uploaded from this one; what it has is in "
    assert f"error: {url}: {what}{machines.folder(prefix)}" in done.stderr
    assert list(store.writers(prefix)) == [f"{prefix}/.writer-other"]


@pytest.mark.slow
def test_what_another_machine_writes_is_in_use_here(
    store: ObjectServer, prefix: str, url: str, machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pipeline(*COMMAND, "--input", write_problems(tmp_path), "--output", url).returncode == 0
    for name in store.writers(prefix):
        store.delete(name)
    store.write(f"{prefix}/.writer-other", b"open\n")
    machines.be("second")
    assert pipeline("runs", "check", url).stdout.splitlines()[0] == f"{url}: finished, 1 session, a process is at work in it"
    assert "process of another machine is at work in it; wait for its end" in pipeline("grade", url).stderr
    monkeypatch.setattr("pipeline.remote.writer.LOOK_S", 0.2)
    with way_to(store) as way, monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", way.url)
        machines.be("third")
        way.fault_after = lambda count: store.write(f"{prefix}/.writer-other", b"open\n") or ""  # type: ignore[func-returns-value]
        done = pipeline("resume", url)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert re.fullmatch(rf"{url}: another machine was at work in it \d s ago; waiting up to \d\d s to see whether it still is", first)
    assert second == f"error: {url}: another machine is at work in it; wait for its end"
    assert list(store.writers(prefix)) == [f"{prefix}/.writer-other"]
    monkeypatch.setattr("pipeline.remote.writer.FRESH_S", 0.0)  # it has not been heard of for so long
    assert pipeline("resume", url).returncode == 0
    assert list(store.writers(prefix).values()) == [b"closed\n"]
    assert pipeline("grade", url).returncode == 0


@pytest.mark.slow
def test_a_machine_whose_copy_is_older_gets_the_newer_one(
    store: ObjectServer, prefix: str, url: str, machines: Machines, tmp_path: Path
) -> None:
    problems = write_problems(tmp_path)
    for machine, limit in (("first", 4), ("second", 8), ("first", 12)):
        machines.be(machine)
        done = pipeline(*COMMAND, "--input", problems, "--limit", str(limit), "--allow-drift", "limit", "--resume", "--output", url)
        assert done.returncode == 0, done.stderr
    check_hangs_together(machines.folder(prefix), 12)
    assert len(RunFile.read(machines.folder(prefix)).sessions) == 3
    machines.be("third")
    assert pipeline("runs", "check", url).returncode == 0
