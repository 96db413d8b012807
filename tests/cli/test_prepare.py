"""`pipeline prepare`: what is printed where, and the exit codes."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pyarrow.parquet as pq

from tests.support.commands import pipeline


def prepare(folder: Path, *arguments: str | Path) -> CompletedProcess[str]:
    return pipeline("prepare", *arguments, cwd=folder)


def test_the_bundled_set_is_prepared_in_the_folder_data(tmp_path: Path) -> None:
    done = prepare(tmp_path, "arith")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("data/arith.parquet: 500 problems, digest ")
    assert pq.read_metadata(tmp_path / "data/arith.parquet").num_rows == 500
    again = json.loads(prepare(tmp_path, "arith", "--json").stdout)
    assert (again["rows"], again["mismatch"]) == (500, None)


def test_errors_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"question": "x", "answer": "#### 1"}\n{"question": "y", "answer": ""}\n')
    for arguments, sentence in [
        (("gsm8k", "--from", "bad.jsonl"), "error: bad.jsonl, row 2: has no answer"),
        (("gsm8k",), "error: gsm8k: give the published file, --from PATH, or --from hub to download"),
        (("gsm9k",), "error: no data set is named `gsm9k`; did you mean `gsm8k`?"),
    ]:
        done = prepare(tmp_path, *arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(sentence)
    assert not (tmp_path / "data").exists()


def test_another_version_of_the_data_is_written_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"question": "x", "answer": "#### 1"}\n')
    done = prepare(tmp_path, "gsm8k", "--from", "one.jsonl", "-o", "here.parquet")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: one.jsonl: 1 rows with the digest ")
    assert done.stdout.startswith("here.parquet: 1 problems, digest ")
