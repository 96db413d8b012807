"""Problems of test sets are known by their words; so is the split of a problem."""

import json
from pathlib import Path

import pytest

from pipeline.errors import InputError
from pipeline.training.examples import problem_hash, read_held_out, split_of


def test_problems_of_a_test_set_are_known_by_their_words_whatever_their_column_is_called(tmp_path: Path) -> None:
    path = tmp_path / "gsm8k.jsonl"
    path.write_text(json.dumps({"question": "How many pens?", "answer": "5"}) + "\n")
    assert read_held_out({"gsm8k": [path]}) == {problem_hash(" how MANY\n pens?"): "gsm8k"}
    assert problem_hash("How many pens?") != problem_hash("How many pen?")
    assert len(problem_hash("\ud800")) == 16
    path.write_text('{"text": "x"}\n')
    with pytest.raises(InputError, match="gsm8k: no column `problem`"):
        read_held_out({"gsm8k": [path]})


def test_a_share_of_the_problems_is_for_validation_and_stays_there_when_it_grows() -> None:
    texts = [f"Problem number {number}?" for number in range(2000)]
    none, some, more = ({text for text in texts if split_of(text, share) == "validation"} for share in (0.0, 0.1, 0.3))
    assert none == set()
    assert 150 < len(some) < 250
    assert some < more
