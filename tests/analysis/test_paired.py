"""The interval of a loss: where no answer differs, what it does to the sides, and that it is wrong as seldom as it says."""

import numpy as np
import pytest

from pipeline.analysis.quality.estimates import NOTHING
from pipeline.analysis.quality.paired import loss, normal_bound
from pipeline.analysis.quality.samples import wilson


def test_where_no_answer_differs_it_is_that_of_a_share_of_0() -> None:
    found = loss(np.zeros(150))
    assert found.value == 0.0
    assert [found.low, found.high] == pytest.approx([-wilson(0.0, 150).high, wilson(0.0, 150).high])
    assert loss(np.zeros(0)) == NOTHING


def test_losses_and_gains_are_mirrored() -> None:
    differences = np.array([1.0] * 5 + [-1.0] * 2 + [0.0] * 43)
    found, mirrored = loss(differences), loss(-differences)
    assert found.value == pytest.approx(0.06)
    assert [mirrored.low, mirrored.high] == pytest.approx([-(found.high or 0.0), -(found.low or 0.0)])


def test_several_intervals_that_hold_together_are_wider() -> None:
    differences = np.array([1.0] * 3 + [0.0] * 97)
    highs = [loss(differences, tests).high or 0.0 for tests in (1, 2, 4, 8)]
    assert highs == sorted(set(highs))
    assert [normal_bound(1), normal_bound(4)] == pytest.approx([1.96, 2.498], abs=0.001)


@pytest.mark.parametrize(
    ("problems", "true", "gains", "samples"), [(150, 0.03, 0.0, 1), (400, 0.02, 0.01, 1), (60, 0.1, 0.05, 1), (80, 0.05, 0.1, 4)]
)
def test_a_loss_that_is_too_great_passes_in_at_most_2_5_percent(problems: int, true: float, gains: float, samples: int) -> None:
    random, passed, tried = np.random.default_rng(1), 0, 1500
    for _ in range(tried):
        lost = random.choice((1.0, -1.0, 0.0), (problems, samples), p=(true + gains, gains, 1 - true - 2 * gains)).mean(axis=1)
        passed += (loss(lost).high or 0.0) < true
    assert passed / tried <= 0.025 + 0.006, "a deviation and a half of so many tries"
