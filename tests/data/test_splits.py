"""Which inputs are told as test sets."""

from pathlib import Path

import pytest

from pipeline.bundled import find_file
from pipeline.data.prepare import prepare
from pipeline.data.recipe import load_recipe
from pipeline.data.splits import why_a_test_set
from tests.support.paths import TEST_SET


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("test.parquet", True),
        ("gsm8k-test.jsonl", True),
        ("test/part-0.parquet", True),
        ("test/train.jsonl", False),
        ("validation.parquet", False),
        ("tests/a.parquet", True),
        ("testset.parquet", True),
        ("mytest.parquet", True),
        ("math500.parquet", True),
        ("MATH-500.jsonl", True),
        ("gsm8k-train.parquet", False),
        ("arithmetic.csv", False),
        ("latest.csv", False),
        ("contest.csv", False),
        ("attestation.csv", False),
        ("testament.csv", False),
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


def test_a_link_to_one_says_so(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_bytes(b"")
    (tmp_path / "validation.jsonl").symlink_to(tmp_path / "test.jsonl")
    assert why_a_test_set(tmp_path / "validation.jsonl") == f"it is {tmp_path / 'test.jsonl'}, whose name says so"


def test_a_copy_of_a_bundled_one_says_so(tmp_path: Path) -> None:
    copy = tmp_path / "mine.parquet"
    copy.write_bytes(TEST_SET.read_bytes())
    assert why_a_test_set(copy) == "it holds what the bundled arith/test.parquet does"
    copy.write_bytes((TEST_SET.parent / "validation.parquet").read_bytes())
    assert why_a_test_set(copy) is None


def test_a_prepared_benchmark_is_one_whatever_it_is_called(tmp_path: Path) -> None:
    file = tmp_path / "mine.parquet"
    prepare(load_recipe(find_file("arith", "data set")), None, file)
    assert why_a_test_set(file) == "`pipeline prepare arith` made it, a data set that results are reported on"
