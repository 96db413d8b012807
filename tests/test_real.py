"""The arithmetic of steps that real models write, which `bench.real` checks."""

import pytest

from bench.real.measure import arithmetic, auc


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("She has 16 - 3 - 4 = 9 eggs, so \\(9 \\times 2 = 18\\).", True),
        ("2 + 3 * 4 = 14", True),
        ("1,200 / 4 = 300 and 1/3 = 0.33", True),
        ("\\frac{6}{4} = 1.5", True),
        ("60 \\, \\text{meters} \\times 3 = 180 \\, \\text{meters}", True),
        ("\\[ 60\\% \\times 5 = 30 \\]", False),
        ("16 - 3 = 13, but $3 * $4 = $13.", False),
        ("5 / 0 = 0", False),
        ("First, add the eggs: x = 9.", None),
    ],
)
def test_a_step_is_right_where_all_its_equations_between_numbers_are(text: str, right: bool | None) -> None:
    assert arithmetic(text) is right


def test_ties_count_half() -> None:
    assert auc([2, 3], [1, 2]) == 0.875
    assert auc([], [1]) is None
