"""Which inputs are told as test sets."""

from pathlib import Path

import pytest

from pipeline.bundled import find_file
from pipeline.data.prepare import prepare
from pipeline.data.recipe import load_recipe
from pipeline.data.splits import why_a_test_set


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("test.parquet", True),
        ("gsm8k-test.jsonl", True),
        ("test/part-0.parquet", True),
        ("test/train.jsonl", False),
        ("validation.parquet", False),
        ("latest.csv", False),
        ("contest.csv", False),
    ],
)
def test_names_say_so(tmp_path: Path, name: str, told: bool) -> None:
    file = tmp_path / "data" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"")
    assert (why_a_test_set(file) is not None) == told


def test_a_url_says_so(tmp_path: Path) -> None:
    file = tmp_path / "0000.parquet"
    file.write_bytes(b"")
    assert why_a_test_set(file, "hf://openai/gsm8k:main/test") == "its name says so"
    assert why_a_test_set(file, "hf://openai/gsm8k:main/train") is None


def test_a_prepared_benchmark_is_one_whatever_it_is_called(tmp_path: Path) -> None:
    file = tmp_path / "mine.parquet"
    prepare(load_recipe(find_file("arith", "data set")), None, file)
    assert why_a_test_set(file) == "`pipeline prepare arith` made it, a data set that results are reported on"
