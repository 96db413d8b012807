"""Whole runs whose folder is a URL, and the commands that read or write it."""

import json
import os
import re
from pathlib import Path

import pytest

from pipeline.store.rewrite import rewrite
from pipeline.store.run_file import RunFile
from tests.support.commands import pipeline
from tests.support.object_stores import BUCKET, ObjectServer, tables, way_to
from tests.support.paths import SIM
from tests.support.runs import solve, write_problems

COMMAND = ("run", "speccot", "--engines", SIM)
TIMES = ("submit_unix_ns", "start_unix_ns", "end_unix_ns", "first_token_unix_ns", "created_unix_ns")


def local_folder(prefix: str) -> Path:
    """The folder in which the run with this URL is on this machine, by the environment's staging folder."""
    [place] = [each for each in Path(os.environ["PIPELINE_STAGING"]).glob(f"*/{prefix}") if each.is_dir()]
    return place


def answers(url: str) -> list[object]:
    return [json.loads(line)["correct"] for line in pipeline("export", url, "-o", "-").stdout.splitlines()]


@pytest.fixture(name="url")
def _url(prefix: str) -> str:
    return f"s3://{BUCKET}/{prefix}"


@pytest.fixture(name="stored")
def _stored(store: ObjectServer, prefix: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a finished run of another machine."""
    done = pipeline(*COMMAND, "--input", write_problems(tmp_path), "--output", url)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("PIPELINE_STAGING", str(tmp_path / "elsewhere"))
    return url


@pytest.mark.slow
def test_a_run_has_the_rows_of_one_with_a_local_folder(store: ObjectServer, prefix: str, url: str, tmp_path: Path) -> None:
    problems = write_problems(tmp_path)
    done = pipeline(*COMMAND, "--input", problems, "--output", url)
    assert done.returncode == 0, done.stderr
    assert f"everything  pipeline report {url}" in done.stdout
    here = solve(tmp_path, prefix, input=problems).folder
    assert here is not None
    there = local_folder(prefix)
    assert tables(there, *TIMES) == tables(here, *TIMES)
    files = sorted(path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file() and path.name != "run.lock")
    assert store.names(prefix) == files
    for name in files:
        if not name.startswith("manifest"):
            assert store.read(f"{prefix}/{name}") == (there / name).read_bytes()
    assert list(store.writers(prefix).values()) == [b"closed\n"]


@pytest.mark.slow
def test_parts_are_in_the_store_while_the_run_goes_on(
    store: ObjectServer, prefix: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.store.tables.GROUP_ROWS", 64)
    monkeypatch.setattr("pipeline.store.tables.PART_GROUPS", 1)
    monkeypatch.setattr("pipeline.remote.writer.EVERY_S", 0.05)
    seen: list[tuple[str, int]] = []
    with way_to(store) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.url)

        def look(count: int) -> str:
            names = store.names(prefix)
            if "run.json" in names and not any(each == ("running", len(names)) for each in seen):
                seen.append((store.status(prefix), len(names)))
            return ""

        way.fault_after = look  # type: ignore[assignment]
        done = pipeline(*COMMAND, "--input", write_problems(tmp_path, 60), "--output", url)
    assert done.returncode == 0, done.stderr
    assert len([count for status, count in seen if status == "running" and count > 2]) > 1
    assert store.status(prefix) == "finished"


@pytest.mark.slow
def test_every_command_reads_a_url(stored: str, prefix: str, tmp_path: Path) -> None:
    for command, said in {
        ("show", stored): "12 of 12 solved",
        ("show", stored, "p3"): "answer: ",
        ("export", stored, "-o", tmp_path / "answers.csv"): "12 problems",
        ("export", stored, "--as", "calls", "-o", tmp_path / "calls.parquet"): "rows",
        ("show", stored, "--failed"): "no chain failed",
        ("runs", "check", stored): f"{stored}: finished, 1 session\n",
        ("compare", stored): "speccot",
        ("watch", stored): f"{prefix}: finished, 12/12 chains",
        ("graph", "show", "speccot", "--engines", SIM, "--run", stored): "draft",
    }.items():
        done = pipeline(*command)
        assert done.returncode == 0, done.stderr
        assert said in done.stdout, command
    assert (tmp_path / "answers.csv").read_text().count("\n") == 13


@pytest.mark.slow
def test_a_report_is_uploaded_beside_the_run(store: ObjectServer, stored: str, prefix: str) -> None:
    done = pipeline("report", stored)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"report: {stored}/report.html (")
    assert b"<html" in store.read(f"{prefix}/report.html")[:1000]


@pytest.mark.slow
def test_new_grades_are_uploaded(store: ObjectServer, stored: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = answers(stored)
    rewrite(local_folder(prefix), "chains", ["correct"], lambda rows: [{"correct": not row["correct"]} for row in rows])
    done = pipeline("grade", stored)
    assert done.returncode == 0, done.stderr
    assert "12 verdicts changed" in done.stdout
    grades = []
    for machine in ("staging", "elsewhere", "a third"):
        monkeypatch.setenv("PIPELINE_STAGING", str(tmp_path / machine))
        grades.append(answers(stored))
        assert pipeline("runs", "check", stored).returncode == 0
    assert grades == [before] * 3


@pytest.mark.slow
def test_shards_are_merged_by_url(store: ObjectServer, prefix: str, url: str, tmp_path: Path) -> None:
    problems = write_problems(tmp_path, 24)
    shards = [f"{url}/shard-{index}" for index in range(2)]
    for index, shard in enumerate(shards):
        assert pipeline(*COMMAND, "--input", problems, "--shard", f"{index}/2", "--output", shard).returncode == 0
    done = pipeline("runs", "merge", *shards, "--output", f"{url}/all")
    assert (done.returncode, done.stdout) == (0, f"{url}/all: 2 shards, 24 problems, 24 chains\n"), done.stderr
    assert pipeline("runs", "check", f"{url}/all").returncode == 0
    assert "run.json" in store.names(f"{prefix}/all")
    again = pipeline("runs", "merge", *shards, "--output", f"{url}/all")
    assert again.returncode == 2
    assert f"{url}/all: already contains a run" in again.stderr


@pytest.mark.slow
def test_a_url_of_a_file_is_a_path(tmp_path: Path) -> None:
    problems = write_problems(tmp_path)
    done = pipeline(*COMMAND, "--input", f"file://{problems}", "--output", f"file://{tmp_path}/runs/one")
    assert done.returncode == 0, done.stderr
    assert RunFile.read(tmp_path / "runs/one").input.file == str(problems)
    assert pipeline("runs", "check", f"file://{tmp_path}/runs/one").returncode == 0
    assert not (tmp_path / "staging").exists()


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("s3://nobody/run", "s3://nobody/run: there is no bucket 'nobody'"),
        ("s3://runs", "s3://runs: names a bucket; expected a folder in it, such as s3://BUCKET/runs/mine"),
        ("ftp://host/run", "ftp://host/run: unknown scheme 'ftp'"),
        ("s3://me:secret@runs/run", "s3://runs/run: contains credentials, which are not allowed in a URL"),
    ],
)
def test_what_no_run_can_be_written_to(store: ObjectServer, tmp_path: Path, output: str, sentence: str) -> None:
    done = pipeline(*COMMAND, "--input", write_problems(tmp_path), "--output", output)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {sentence}")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_new_run_needs_a_folder_of_its_own(store: ObjectServer, stored: str, prefix: str, tmp_path: Path) -> None:
    run = (*COMMAND, "--input", tmp_path / "problems.jsonl", "--output")
    done = pipeline(*run, stored)
    assert (done.returncode, done.stderr) == (
        2,
        f"error: {stored}: already contains a run; add --resume to resume it, or choose another URL with --output\n",
    )
    store.write(f"{prefix}-other/part-00000.parquet", b"of somebody else")
    done = pipeline(*run, f"{stored}-other")
    assert (done.returncode, done.stderr) == (
        2,
        f"error: {stored}-other: holds other objects and no run; choose another URL with --output\n",
    )
    assert store.names(f"{prefix}-other") == ["part-00000.parquet"]
    done = pipeline(*run, stored, "--resume")
    assert done.returncode == 0
    assert "there is nothing to resume" in done.stderr


@pytest.mark.parametrize("command", [("report",), ("resume",), ("runs", "check"), ("compare",), ("export", "-o", "x.csv")])
def test_a_url_without_a_run(store: ObjectServer, url: str, command: tuple[str, ...]) -> None:
    done = pipeline(*command, f"{url}/none")
    assert done.returncode == 2
    assert re.match(rf"error: {re.escape(url)}/none(/run.json)?: .*; expected a (run folder|folder with a run.json)\n", done.stderr)


@pytest.mark.parametrize(
    "command", [("runs", "list"), ("runs", "rm", "--yes"), ("init",), ("prepare", "arith", "--output"), ("export", "x", "-o")]
)
def test_commands_for_paths_of_this_machine(url: str, command: tuple[str, ...]) -> None:
    done = pipeline(*command, url)
    assert done.returncode == 2
    assert f"{url}: a URL, where only a path of this machine can be used" in done.stderr


def test_the_patience_of_an_upload_is_a_number(store: ObjectServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPELINE_UPLOAD_PATIENCE_S", "for ever")
    done = pipeline(*COMMAND, "--input", write_problems(tmp_path), "--output", url)
    assert done.returncode == 2
    assert done.stderr == "error: PIPELINE_UPLOAD_PATIENCE_S=for ever: expected a number of seconds from 0 to 1,000,000\n"
