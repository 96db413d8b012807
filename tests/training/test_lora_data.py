"""What is learnt from, what is measured on, and what must not be learnt."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import InputError
from pipeline.graph.prompts import DEFAULT_PROMPTS
from pipeline.training.held_out import HeldOutProblems
from pipeline.training.lora.config import DraftConfig, SelectConfig
from pipeline.training.lora.data import Data, prepare
from pipeline.training.lora.files import read_files
from pipeline.training.lora.tokens import Encoder
from pipeline.training.split import problem_hash, split_of
from tests.support.chat_models import chat_model
from tests.support.training_data import arith, messages_row, published_choices, published_thoughts, write_lines

NAME = "bundled:tiny-draft"


def prepared(path: Path, held_out: HeldOutProblems | None = None, longest: int = 10_000, **values: Any) -> Data:
    return prepared_of(path, held_out=held_out, longest=longest, **values)


def prepared_of(*paths: Path, held_out: HeldOutProblems | None = None, longest: int = 10_000, **values: Any) -> Data:
    config = DraftConfig(model=NAME, data=tuple(path.name for path in paths), **values)
    files = read_files("draft", [(path.name, path) for path in paths])
    return prepare(files, config, held_out or HeldOutProblems({}), Encoder(chat_model("tiny-draft"), NAME, DEFAULT_PROMPTS), longest)


def asked(problem: str, **values: Any) -> dict[str, Any]:
    """A row about a problem."""
    return messages_row(problem, "<think>\nSo.</think>", problem_hash=problem_hash(problem), **values)


def test_published_data_are_split_by_the_text_of_the_problem(tmp_path: Path) -> None:
    data = prepared(published_thoughts(tmp_path / "data.jsonl", 40), validation=0.3)
    expected = [split_of(problem, 0.3) for problem, _ in arith(40)]
    assert (len(data.train), len(data.validation)) == (expected.count("train"), expected.count("validation"))
    [file] = data.files
    assert (file.train, file.validation, file.name) == (len(data.train), len(data.validation), "data.jsonl")
    assert data.notices() == []


def test_exported_data_have_their_split(tmp_path: Path) -> None:
    rows = [asked(problem, split=split) for problem, split in (("A?", "train"), ("B?", "validation"))]
    data = prepared(write_lines(tmp_path / "data.jsonl", rows), validation=0.9)
    assert (len(data.train), len(data.validation)) == (1, 1)


def test_too_long_examples_are_left_out_whole_and_counted(tmp_path: Path) -> None:
    path = published_thoughts(tmp_path / "data.jsonl", 20)
    lengths = sorted(example.length for example in prepared(path, validation=0.0).train)
    data = prepared(path, validation=0.0, longest=lengths[9])
    left = sum(length > lengths[9] for length in lengths)
    assert sorted(example.length for example in data.train) == lengths[: 20 - left]
    assert data.notices()[0] == f"data.jsonl: {left} rows have more than {lengths[9]} tokens and are left out"
    assert data.notices()[-1] == "no example is held back for validation: nothing is measured"
    with pytest.raises(InputError, match=r"data.jsonl: nothing is left to learn from: data.jsonl: 20 rows have more than 3 tokens"):
        prepared(path, longest=3)


def test_problems_of_a_test_set_are_refused_or_left_out(tmp_path: Path) -> None:
    (problem, _), *_ = arith(20)[4:]
    held_out = HeldOutProblems({"mine": [write_lines(tmp_path / "test.jsonl", [{"problem": each} for each, _ in arith(6, 4)])]})
    path = published_thoughts(tmp_path / "data.jsonl", 20)
    with pytest.raises(InputError) as caught:
        prepared(path, held_out)
    what = f"data.jsonl: 6 of its 20 problems are in a test set, the first in row 5, '{problem[:60]}...', in mine"
    assert str(caught.value) == f"{what}; train on other problems, or leave these out with overlap: leave_out"
    data = prepared(path, held_out, overlap="leave_out", validation=0.0)
    assert len(data.train) == 14
    assert data.notices()[0] == "data.jsonl: 6 rows are about problems of a test set and are left out"


def test_all_rows_of_a_problem_count_as_one(tmp_path: Path) -> None:
    (problem, _), *_ = arith(1)
    held_out = HeldOutProblems({"mine": [write_lines(tmp_path / "test.jsonl", [{"problem": problem}])]})
    rows = [
        messages_row(f"{problem}\nPlease reason.", "<think>\nSo.</think>", problem_id="a", chain_id=f"a#{number}") for number in range(3)
    ]
    path = write_lines(tmp_path / "data.jsonl", [*rows, messages_row("Another?", "<think>\nSo.</think>", problem_id="b")])
    with pytest.raises(InputError, match="1 of its 2 problems are in a test set, the first in row 1, a, in mine"):
        prepared(path, held_out)
    assert len(prepared(path, held_out, overlap="leave_out").train) == 1


def test_a_problem_in_both_splits_is_refused(tmp_path: Path) -> None:
    rows = [asked("A?", split="train", problem_id="a"), asked("B?", split="validation", problem_id="b")]
    one = write_lines(tmp_path / "one.jsonl", rows)
    other = write_lines(tmp_path / "other.jsonl", [asked("b?", split="train", problem_id="c", input_sha256="1" * 64)])
    assert len(prepared(one).train) == len(prepared(other).train) == 1
    with pytest.raises(InputError) as caught:
        prepared_of(one, other)
    what = "its problem, c, is in the split train, and in validation in one.jsonl, row 2, so validation would measure training data"
    remedy = "export all files with one --validation, and set `validation` to the same share for published data"
    assert str(caught.value) == f"other.jsonl, row 1: {what}; {remedy}"


def test_published_data_beside_exported_ones_with_another_share(tmp_path: Path) -> None:
    problems = arith(20)
    published = published_thoughts(tmp_path / "published.jsonl", 20)
    rows = [asked(problem, split=split_of(problem, 0.4), problem_id=f"p{place}") for place, (problem, _) in enumerate(problems)]
    exported = write_lines(tmp_path / "exported.jsonl", rows)
    with pytest.raises(
        InputError, match=r"exported.jsonl, row \d+: its problem, p\d+, is in the split validation, and in train in published"
    ):
        prepared_of(published, exported, validation=0.1)
    assert len(prepared_of(published, exported, validation=0.4).validation) == 2 * sum(row["split"] == "validation" for row in rows)


def test_how_problems_were_asked_is_known(tmp_path: Path) -> None:
    files = [
        published_thoughts(tmp_path / "published.jsonl", 2),
        write_lines(
            tmp_path / "exported.jsonl", [asked("A?", graph="target", prompts="default"), asked("B?", graph="target", prompts=None)]
        ),
    ]
    data = prepared_of(*files, validation=0.0, prompts="specreason")
    assert [[(each.graph, each.prompts) for each in file.asked] for file in data.files] == [
        [("scot", "specreason")],
        [("target", None), ("target", "default")],
    ]


def test_cut_thoughts_are_told(tmp_path: Path) -> None:
    path = published_thoughts(tmp_path / "data.jsonl", 2)
    path.write_text(path.read_text().replace("</think>", "", 1))
    assert prepared(path, validation=0.0).notices()[0] == "data.jsonl: 1 thoughts have no end and are used as they are"


def test_choices_of_several_files(tmp_path: Path) -> None:
    paths = [published_choices(tmp_path / f"{name}.jsonl", 5, begin) for name, begin in (("a", 0), ("b", 100))]
    config = SelectConfig(model="bundled:tiny-target", data=("a", "b"), validation=0.0)
    files = read_files("select", [(path.name, path) for path in paths])
    data = prepare(files, config, HeldOutProblems({}), Encoder(chat_model("tiny-target"), "bundled:tiny-target", DEFAULT_PROMPTS), 4096)
    assert [file.train for file in data.files] == [5, 5]
    assert len(data.train) == 10
