"""`pipeline prepare`: what is printed where, and the exit codes."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pyarrow.parquet as pq

from tests.support.commands import pipeline

RECIPE = "name: mine\ntitle: Mine\nlicense: ours\ncitation: ours\nproblem: q\nanswer: a\ngrader: math\nrows: 2\n"


def prepare(folder: Path, *arguments: str | Path) -> CompletedProcess[str]:
    return pipeline("prepare", *arguments, cwd=folder)


def test_the_bundled_set_is_prepared_in_the_folder_data(tmp_path: Path) -> None:
    done = prepare(tmp_path, "arith")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("data/arith.parquet: 500 problems, digest ")
    assert done.stdout.endswith(", as expected\n")
    assert pq.read_metadata(tmp_path / "data/arith.parquet").num_rows == 500
    again = json.loads(prepare(tmp_path, "arith", "--json").stdout)
    assert (again["rows"], again["written"], again["checked"], again["mismatch"]) == (500, False, True, None)


def test_errors_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(RECIPE)
    (tmp_path / "one.jsonl").write_text('{"q": "x", "a": 1}\n')
    (tmp_path / "bad.jsonl").write_text('{"q": "x", "a": 1}\n{"q": "y", "a": ""}\n')
    for arguments, sentence in [
        (("mine.yaml", "--from", "one.jsonl"), "error: one.jsonl: 1 row, expected 2: it is not the file the recipe was made for"),
        (("mine.yaml", "--from", "one.jsonl", "--overwrite"), "error: one.jsonl: 1 row, expected 2: it is not the file"),
        (("mine.yaml", "--from", "bad.jsonl", "--allow-mismatch"), "error: bad.jsonl, row 2: `a` is empty; every problem needs its"),
        (("mine.yaml",), "error: mine is not bundled; give the published file: --from PATH\n"),
        (("gsm9k",), "error: no data set is named `gsm9k` and there is no such file; did you mean `gsm8k`?"),
    ]:
        done = prepare(tmp_path, *arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(sentence)
    assert not (tmp_path / "data").exists()


def test_another_version_of_the_data_is_accepted_with_a_warning_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(RECIPE)
    (tmp_path / "one.jsonl").write_text('{"q": "x", "a": 1}\n')
    done = prepare(tmp_path, "mine.yaml", "--from", "one.jsonl", "--allow-mismatch", "-o", "here.parquet")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: one.jsonl: 1 row, expected 2; results are not comparable")
    assert done.stdout.startswith("here.parquet: 1 problems, digest ")
    assert done.stdout.endswith(", unexpected\n")
    (tmp_path / "here.parquet").write_bytes(b"mine")
    refused = prepare(tmp_path, "mine.yaml", "--from", "one.jsonl", "--allow-mismatch", "-o", "here.parquet")
    assert (refused.returncode, "add --overwrite" in refused.stderr) == (2, True)
