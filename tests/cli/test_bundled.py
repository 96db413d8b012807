"""`pipeline list` and `prepare`: everything bundled is listed, data sets become files."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.cli.bundled import FILES, KINDS
from pipeline.graph.files import bundled_files
from tests.support.commands import pipeline


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_everything_bundled_is_listed_with_what_it_is(kind: str | None) -> None:
    words = [] if kind is None else [kind]
    found = json.loads(pipeline("list", *words, "--json").stdout)
    assert all(row["name"] and row["about"] for row in found)
    printed = pipeline("list", *words).stdout
    assert all(row["name"] in printed for row in found)
    assert "None" not in printed
    names = [row["name"] for row in found]
    assert sorted(names) == sorted(KINDS if kind is None else bundled_files(FILES[kind]) if kind in FILES else names)
    if kind == "graphs":
        assert (names[:4], found[0]["params"]["candidates"]) == (["speccot", "specreason", "scot", "target"], 5)


def test_a_data_set_is_prepared_in_the_folder_data(tmp_path: Path) -> None:
    done = pipeline("prepare", "arith", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("data/arith.parquet: 500 problems, digest ")
    assert pq.read_metadata(tmp_path / "data/arith.parquet").num_rows == 500
    (tmp_path / "one.jsonl").write_text('{"question": "x", "answer": "#### 1"}\n')
    other = pipeline("prepare", "gsm8k", "--from", "one.jsonl", "-o", "here.parquet", cwd=tmp_path)
    assert (other.returncode, other.stdout.startswith("here.parquet: 1 problems, digest ")) == (0, True)
    assert other.stderr.startswith("warning: one.jsonl: 1 rows with the digest ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("gsm8k", "--from", "bad.jsonl"), "error: bad.jsonl, row 2: has no answer"),
        (("gsm8k",), "error: gsm8k: give the published file, --from PATH, or --from hub to download"),
        (("gsm9k",), "error: no data set is named `gsm9k`; did you mean `gsm8k`?"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    (tmp_path / "bad.jsonl").write_text('{"question": "x", "answer": "#### 1"}\n{"question": "y", "answer": ""}\n')
    done = pipeline("prepare", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(sentence)
    assert not (tmp_path / "data").exists()
