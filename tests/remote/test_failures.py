"""Stores that fail while a run goes on: nothing is lost, and what is not uploaded is told."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.store.checking.fsck import examine
from tests.support.commands import pipeline
from tests.support.hanging_together import check_hangs_together
from tests.support.object_stores import BUCKET, Fault, ObjectServer, Way, tables, way_to
from tests.support.paths import SIM
from tests.support.runs import solve, write_problems

COMMAND = ("run", "speccot", "--engines", SIM)
TIMES = ("submit_unix_ns", "start_unix_ns", "end_unix_ns", "first_token_unix_ns", "created_unix_ns")


@pytest.fixture(name="way")
def _way(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Way]:
    """The only way to the server; everything that waits does so shortly."""
    monkeypatch.setattr("pipeline.remote.writer.EVERY_S", 0.05)
    monkeypatch.setattr("pipeline.remote.environment.ATTEMPTS", 1)
    with way_to(server) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)
        yield way


def faults(first: int, count: int, fault: Fault) -> Callable[[int], Fault]:
    """So many requests fail, after the first ones."""
    return lambda number: fault if first <= number < first + count else ""


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["reset", "error"])
@pytest.mark.parametrize("first", [6, 12])
def test_a_store_that_fails_for_a_while_has_the_whole_run(
    server: ObjectServer, way: Way, prefix: str, tmp_path: Path, fault: Fault, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    way.fault_after = faults(first, 3, fault)
    problems = write_problems(tmp_path)
    done = pipeline(*COMMAND, "--input", problems, "--output", f"s3://{BUCKET}/{prefix}")
    assert done.returncode == 0, done.stderr
    assert len(way.requests) > first + 3
    monkeypatch.setenv("PIPELINE_STAGING", str(tmp_path / "elsewhere"))
    assert pipeline("runs", "check", f"s3://{BUCKET}/{prefix}").returncode == 0
    [mirror] = (tmp_path / "elsewhere").glob(f"*/{prefix}")
    whole = solve(tmp_path, prefix, input=problems).folder
    assert whole is not None
    assert tables(mirror, *TIMES) == tables(whole, *TIMES)


@pytest.mark.slow
def test_a_store_that_stays_away_leaves_the_run_here_until_it_is_back(
    server: ObjectServer, way: Way, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_UPLOAD_PATIENCE_S", "0.1")
    url = f"s3://{BUCKET}/{prefix}"
    way.fault_after = faults(6, 10_000, "reset")
    done = pipeline(*COMMAND, "--input", write_problems(tmp_path), "--output", url)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    what = r"not everything is uploaded: the store at .* does not answer \(.*\)"
    found = re.fullmatch(rf"error: {url}: {what}; the run is whole in (.*), and `pipeline resume {url}` uploads the rest", last)
    assert found is not None, last
    assert examine(Path(found[1])).sound
    assert "calls/part-00000.parquet" not in server.names(prefix)

    way.fault_after = faults(0, 0, "")
    done = pipeline("resume", url)
    assert done.returncode == 0, done.stderr
    assert f"{url} is finished: there is nothing to resume" in done.stderr
    monkeypatch.setenv("PIPELINE_STAGING", str(tmp_path / "elsewhere"))
    assert pipeline("runs", "check", url).returncode == 0
    [mirror] = (tmp_path / "elsewhere").glob(f"*/{prefix}")
    assert tables(mirror) == tables(Path(found[1]))
    check_hangs_together(mirror, 12)


def test_a_run_is_not_begun_where_the_store_does_not_answer(way: Way, prefix: str, tmp_path: Path) -> None:
    way.fault = "reset"
    done = pipeline(*COMMAND, "--input", write_problems(tmp_path), "--output", f"s3://{BUCKET}/{prefix}")
    assert done.returncode == 2
    assert re.fullmatch(rf"error: s3://{BUCKET}/{prefix}: the store at http://127.0.0.1:\d+ does not answer \(.*\)\n", done.stderr)


@pytest.mark.slow
def test_what_a_command_writes_and_cannot_upload_is_told(
    server: ObjectServer, way: Way, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{BUCKET}/{prefix}"
    assert pipeline(*COMMAND, "--input", write_problems(tmp_path), "--output", url).returncode == 0
    monkeypatch.setenv("PIPELINE_STAGING", str(tmp_path / "elsewhere"))
    way.fault_after = lambda count: "error" if way.requests[-1].startswith("PUT") else ""
    done = pipeline("export", url, "--as", "perfetto")
    assert done.returncode == 1
    found = re.search(
        rf"error: {url}/trace.pftrace: the store answers with an error: .*; not uploaded: trace.pftrace, which is in (.*)\n", done.stderr
    )
    assert found is not None, done.stderr
    assert (Path(found[1]) / "trace.pftrace").exists()
    way.fault_after = faults(0, 0, "")
    assert pipeline("export", url, "--as", "perfetto", "--overwrite").returncode == 0
    assert "trace.pftrace" in server.names(prefix)
