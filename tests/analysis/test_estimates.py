"""Intervals: how often they hold the truth, what is paired in them, and what they say where problems do not differ."""

from collections.abc import Callable

import numpy as np
import pytest

from pipeline.analysis.arrays import Array
from pipeline.analysis.quality.estimates import NOTHING, Estimate, factor, gain, outcomes, ratio, share
from pipeline.analysis.quality.samples import wilson

ONES = np.ones(10)


def both(rng: np.random.Generator) -> tuple[Array, Array]:
    """Tokens and seconds of 60 problems: hard ones take more of both."""
    hard = rng.gamma(4, 1, 60)
    return hard * rng.gamma(9, 1 / 9, 60), hard * rng.gamma(9, 2 / 9, 60)


@pytest.mark.parametrize(
    ("figure", "truth"),
    [
        (lambda tokens, seconds: ratio(tokens, seconds), 0.5),
        (lambda tokens, seconds: factor((seconds, tokens)), 2.0),
        (lambda tokens, seconds: share((tokens > 3).astype(float), np.ones(60)), None),
        (lambda tokens, seconds: gain((tokens > 3).astype(float), np.ones(60), (seconds > 6).astype(float), np.ones(60)), 0.0),
    ],
)
def test_an_interval_holds_the_truth_in_about_95_of_100_cases(figure: Callable[[Array, Array], Estimate], truth: float | None) -> None:
    rng, inside = np.random.default_rng(1), 0
    if truth is None:
        truth = float(np.mean([(both(rng)[0] > 3).mean() for _ in range(2000)]))
    for _ in range(400):
        found = figure(*both(rng))
        inside += (found.low or 0.0) <= truth <= (found.high or 0.0)
    assert 0.91 <= inside / 400 <= 0.98


def test_a_factor_and_its_inverse_say_the_same() -> None:
    tokens, seconds = both(np.random.default_rng(2))
    found, inverse = factor((tokens, seconds)), factor((seconds, tokens))
    forward, back = (np.array([each.value, each.low, each.high]) for each in (found, inverse))
    assert back[[0, 2, 1]] == pytest.approx(1 / forward)
    product = factor((tokens, seconds), (seconds, tokens))
    assert (product.value, product.low, product.high) == (pytest.approx(1), pytest.approx(1), pytest.approx(1)), "they are paired"


def test_a_ratio_is_that_of_the_sums() -> None:
    assert ratio(np.array([1.0, 5.0]), np.array([2.0, 2.0])).value == 1.5
    assert ratio(np.array([4.0, 2.0]), np.array([2.0, 1.0])) == Estimate(2.0, 2.0, 2.0)  # of every problem
    assert ratio(np.array([3.0]), np.array([2.0])) == Estimate(1.5), "one problem has no spread"
    assert ratio(np.zeros(3), np.zeros(3)) == ratio(np.empty(0), np.empty(0)) == factor((ONES, 0 * ONES)) == NOTHING


def test_the_same_problems_are_compared_in_both_runs() -> None:
    hard = np.arange(50) % 2  # half of the problems are hard, for both alike
    found = gain(1.0 - hard * 0.9, np.ones(50), 1.0 - hard, np.ones(50))
    assert found.value == pytest.approx(0.05)
    assert found.low is not None
    assert found.low > 0.02


def test_where_all_problems_agree_the_interval_is_not_empty() -> None:
    assert share(0 * ONES, ONES) == Estimate(0.0, 0.0, wilson(0.0, 10).high)
    room = wilson(0.0, 10).high
    assert gain(ONES, ONES, ONES, ONES) == Estimate(0.0, -room, room)
    assert gain(ONES, ONES, 0 * ONES, ONES) == Estimate(1.0, 1.0 - room, 1.0)
    assert outcomes(np.arange(10), ONES) == Estimate(1.0, wilson(1.0, 10).low, wilson(1.0, 10).high)
    assert outcomes(np.empty(0), np.empty(0)) == NOTHING
