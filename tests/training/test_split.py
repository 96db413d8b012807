"""Splits go by the text of a problem."""

from pipeline.training.split import fingerprint, split_of


def test_a_problem_is_known_by_its_words() -> None:
    assert fingerprint("How many\n  pens?") == fingerprint(" how many pens?")
    assert fingerprint("How many pens?") != fingerprint("How many pen?")
    assert isinstance(fingerprint("\ud800"), int)


def test_a_share_of_the_problems_is_for_validation() -> None:
    texts = [f"Problem number {number}?" for number in range(2000)]
    splits = [split_of(text, 0.1) for text in texts]
    assert 150 < splits.count("validation") < 250
    assert [split_of(text, 0.0) for text in texts[:50]] == ["train"] * 50
    assert all(split_of(text, 0.3) == "validation" for text, split in zip(texts, splits, strict=True) if split == "validation")
