"""Problems by URL: one object, a folder of them, a pattern."""

from pathlib import Path

import msgspec
import pytest

from pipeline.data.files import files_of
from pipeline.errors import UsageError
from pipeline.remote.inputs import fetch_problems
from pipeline.store.run_file import RunFile
from tests.remote.object_stores import BUCKET, ObjectServer, tables
from tests.support.commands import pipeline
from tests.support.paths import SIM
from tests.support.runs import write_problems

COMMAND = ("run", "speccot", "--engines", SIM)


def put(store: ObjectServer, prefix: str, *names: str) -> str:
    for name in names:
        store.write(f"{prefix}/{name}", name.encode())
    return f"s3://{BUCKET}/{prefix}"


def contents(path: Path) -> list[str]:
    return [file.read_text() for file in files_of(path)]


def test_one_object(store: ObjectServer, prefix: str, tmp_path: Path) -> None:
    url = put(store, prefix, "a.csv")
    path = fetch_problems(f"{url}/a.csv", tmp_path)
    assert (path.name, path.read_text()) == ("a.csv", "a.csv")


def test_a_folder_gives_the_files_that_are_directly_in_it(store: ObjectServer, prefix: str, tmp_path: Path) -> None:
    url = put(store, prefix, "b.jsonl", "a.csv.gz", "c.txt", "d/e.csv")
    assert contents(fetch_problems(f"{url}/", tmp_path)) == ["a.csv.gz", "b.jsonl"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.csv", ["a.csv", "b.csv"]),
        ("?.csv", ["a.csv", "b.csv"]),
        ("*/part.csv", ["x/part.csv", "y/part.csv"]),
        ("**/*.csv", ["a.csv", "b.csv", "x/part.csv", "x/z/c.csv", "y/part.csv"]),
    ],
)
def test_a_pattern(store: ObjectServer, prefix: str, tmp_path: Path, pattern: str, found: list[str]) -> None:
    url = put(store, prefix, "b.csv", "a.csv", "a.txt", "y/part.csv", "x/part.csv", "x/z/c.csv")
    assert contents(fetch_problems(f"{url}/{pattern}", tmp_path)) == found


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("b.csv", "there is no such file"),
        ("*.jsonl", "no file matches this pattern"),
        ("folder", "has no file that ends in .parquet"),
        ("../x", "`..` in its path"),
    ],
)
def test_what_is_not_there(store: ObjectServer, prefix: str, tmp_path: Path, name: str, sentence: str) -> None:
    url = put(store, prefix, "a.csv", "folder/notes.txt")
    with pytest.raises(UsageError, match=sentence):
        fetch_problems(f"{url}/{name}", tmp_path)


def test_a_url_of_a_file_is_its_path(tmp_path: Path) -> None:
    assert fetch_problems(f"file://{tmp_path}/a%20b.csv", tmp_path / "unused") == tmp_path / "a b.csv"


@pytest.mark.slow
def test_a_run_is_of_the_url_and_has_the_rows_of_the_file(store: ObjectServer, prefix: str, tmp_path: Path) -> None:
    problems = write_problems(tmp_path)
    url = f"s3://{BUCKET}/{prefix}/problems.jsonl"
    store.write(f"{prefix}/problems.jsonl", problems.read_bytes())
    for name, given in {"local": str(problems), "stored": url}.items():
        done = pipeline(*COMMAND, "--input", given, "--output", tmp_path / name / "run")
        assert done.returncode == 0, done.stderr
    one, other = RunFile.read(tmp_path / "stored/run"), RunFile.read(tmp_path / "local/run")
    assert one.options.input == (url,)
    assert one.input.sha256 == other.input.sha256
    columns = ("submit_unix_ns", "start_unix_ns", "end_unix_ns", "first_token_unix_ns")
    assert tables(tmp_path / "stored/run", *columns) == tables(tmp_path / "local/run", *columns)


@pytest.mark.slow
def test_a_run_of_a_url_goes_on_with_what_it_kept(store: ObjectServer, prefix: str, tmp_path: Path) -> None:
    url, folder = f"s3://{BUCKET}/{prefix}/problems.jsonl", tmp_path / "run"
    store.write(f"{prefix}/problems.jsonl", write_problems(tmp_path).read_bytes())
    assert pipeline(*COMMAND, "--input", url, "--output", folder).returncode == 0
    card = msgspec.json.decode((folder / "run.json").read_bytes())
    (folder / "run.json").write_bytes(msgspec.json.encode(card | {"status": "interrupted"}))
    store.delete(f"{prefix}/problems.jsonl")
    done = pipeline("resume", folder)
    assert done.returncode == 0, done.stderr
    assert RunFile.read(folder).options.input == (url,)


@pytest.mark.slow
def test_messages_name_the_url(store: ObjectServer, prefix: str, tmp_path: Path) -> None:
    store.write(f"{prefix}/x.csv", b"riddle\nwhy?\n")
    done = pipeline(*COMMAND, "--input", f"s3://{BUCKET}/{prefix}/x.csv", "--output", tmp_path / "run")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: s3://{BUCKET}/{prefix}/x.csv: no column `problem`; pass --column problem=NAME, one of `riddle`")


@pytest.mark.slow
def test_other_commands_take_urls_of_problems(store: ObjectServer, prefix: str, tmp_path: Path) -> None:
    url = f"s3://{BUCKET}/{prefix}/problems.jsonl"
    store.write(f"{prefix}/problems.jsonl", write_problems(tmp_path).read_bytes())
    shown = pipeline("graph", "prompt", "speccot", "draft", "--engines", SIM, "--input", url, "--row", "3")
    assert "Problem number 2?" in shown.stdout
