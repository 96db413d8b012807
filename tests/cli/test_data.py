"""`pipeline data`: what is printed where, and the exit codes."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pyarrow.parquet as pq

from tests.support.commands import pipeline

RECIPE = "name: mine\ntitle: Mine\nlicense: ours\ncitation: ours\nproblem: q\nanswer: a\ngrader: math\nrows: 2\n"


def data(folder: Path, *arguments: str | Path) -> CompletedProcess[str]:
    return pipeline("data", *arguments, cwd=folder)


def test_the_bundled_set_is_prepared_in_the_folder_data(tmp_path: Path) -> None:
    done = data(tmp_path, "prepare", "arith")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("data/arith.parquet: 500 problems, digest ")
    assert done.stdout.endswith(", as expected\n")
    assert pq.read_metadata(tmp_path / "data/arith.parquet").num_rows == 500
    again = json.loads(data(tmp_path, "prepare", "arith", "--json").stdout)
    assert (again["rows"], again["written"], again["checked"], again["mismatch"]) == (500, False, True, None)


def test_the_list_names_every_recipe(tmp_path: Path) -> None:
    lines = data(tmp_path, "list").stdout.splitlines()
    assert len(lines) == 11
    assert "gsm8k               1319  numeric  hub: openai/gsm8k (MIT)" in lines
    recipes = json.loads(data(tmp_path, "list", "--json").stdout)
    assert {recipe["name"] for recipe in recipes} >= {"gsm8k", "gpqa_diamond", "arith"}


def test_refusals_are_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(RECIPE)
    (tmp_path / "one.jsonl").write_text('{"q": "x", "a": 1}\n')
    (tmp_path / "bad.jsonl").write_text('{"q": "x", "a": 1}\n{"q": "y", "a": ""}\n')
    for arguments, sentence in [
        (("mine.yaml", "--from", "one.jsonl"), "error: one.jsonl: 1 row, expected 2: another edition than the recipe's"),
        (("mine.yaml", "--from", "bad.jsonl", "--force"), "error: bad.jsonl, row 2: `a` is empty; every problem needs the answer"),
        (("mine.yaml",), "error: mine is not bundled; give its file as published: --from PATH\n"),
        (("gsm9k",), "error: no data set is named `gsm9k` and there is no such file; did you mean `gsm8k`?"),
    ]:
        done = data(tmp_path, "prepare", *arguments)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(sentence)
    assert not (tmp_path / "data").exists()


def test_force_takes_another_edition_and_warns(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(RECIPE)
    (tmp_path / "one.jsonl").write_text('{"q": "x", "a": 1}\n')
    done = data(tmp_path, "prepare", "mine.yaml", "--from", "one.jsonl", "--force", "--output", "here.parquet")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: one.jsonl: 1 row, expected 2; taken as it is")
    assert done.stdout.startswith("here.parquet: 1 problems, digest ")
    assert done.stdout.endswith(", unexpected\n")
