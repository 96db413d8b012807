"""Problems of test sets are known by their text; so is the split of a problem."""

import json
from pathlib import Path

import pytest

from pipeline.errors import InputError
from pipeline.training.held_out import problem_hash, read_held_out, split_of


def test_problems_of_a_test_set_are_known_whatever_their_column_is_called(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text(json.dumps({"question": "How many pens?", "answer": "5"}) + "\n")
    assert read_held_out({"gsm8k": [path]}) == {problem_hash(" how MANY\n pens?"): "gsm8k"}
    path.write_text('{"text": "x"}\n')
    with pytest.raises(InputError, match="gsm8k: no column `problem`"):
        read_held_out({"gsm8k": [path]})


def test_a_problem_is_known_by_its_words() -> None:
    assert problem_hash("How many\n  pens?") == problem_hash(" how many pens?")
    assert problem_hash("How many pens?") != problem_hash("How many pen?")
    assert len(problem_hash("\ud800")) == 16


def test_a_share_of_the_problems_is_for_validation() -> None:
    texts = [f"Problem number {number}?" for number in range(2000)]
    splits = [split_of(text, 0.1) for text in texts]
    assert 150 < splits.count("validation") < 250
    assert [split_of(text, 0.0) for text in texts[:50]] == ["train"] * 50
    assert all(split_of(text, 0.3) == "validation" for text, split in zip(texts, splits, strict=True) if split == "validation")
