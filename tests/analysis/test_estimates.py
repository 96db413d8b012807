"""Intervals: what they hold, and what they say where no draw of problems says otherwise."""

import numpy as np
import pytest

from pipeline.analysis.quality import estimates
from pipeline.analysis.quality.estimates import NOTHING, Estimate, change, difference, gain, mean, outcomes, ratio, share
from pipeline.analysis.quality.samples import wilson


def test_an_interval_holds_the_mean_in_about_95_of_100_cases() -> None:
    noise = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        found = mean(noise.normal(size=60))
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= 0.0 <= found.high
    assert 175 <= inside <= 199


def test_a_ratio_is_that_of_the_sums() -> None:
    assert ratio(np.array([1.0, 5.0]), np.array([2.0, 2.0])).value == 1.5
    assert ratio(np.array([4.0, 2.0]), np.array([2.0, 1.0])) == Estimate(2.0, 2.0, 2.0)  # on every problem, so in every draw
    assert ratio(np.zeros(3), np.zeros(3)) == NOTHING
    assert mean(np.empty(0)) == NOTHING


def test_a_change_is_relative_and_a_difference_is_not() -> None:
    assert change(np.array([1.0, 2.0]), np.array([2.0, 4.0])) == Estimate(-0.5, -0.5, -0.5)
    ones = np.ones(2)
    assert difference(ones, ones, np.array([1.0, 0.0]), ones).value == 0.5


def test_the_same_problems_are_drawn_for_both_runs() -> None:
    hard = np.arange(50) % 2  # half of the problems are hard, for both alike
    found = gain(1.0 - hard * 0.9, np.ones(50), 1.0 - hard, np.ones(50))
    assert found.value == pytest.approx(0.05)
    assert found.low is not None
    assert found.low > 0.02


def test_where_all_problems_agree_the_interval_is_not_empty() -> None:
    ones = np.ones(10)
    assert share(0 * ones, ones) == Estimate(0.0, 0.0, wilson(0.0, 10).high)
    room = wilson(0.0, 10).high
    assert gain(ones, ones, ones, ones) == Estimate(0.0, -room, room)
    assert gain(ones, ones, 0 * ones, ones) == Estimate(1.0, 1.0 - room, 1.0)
    assert outcomes(np.arange(10), ones) == Estimate(1.0, wilson(1.0, 10).low, wilson(1.0, 10).high)
    assert outcomes(np.empty(0), np.empty(0)) == NOTHING


def test_many_problems_are_drawn_a_few_times_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(2).normal(size=300)
    monkeypatch.setattr(estimates, "MAX_WEIGHTS", 300 * 64)
    pieces = mean(values)
    monkeypatch.undo()
    whole = mean(values)
    assert pieces.value == whole.value
    assert (pieces.low, pieces.high) == (pytest.approx(whole.low), pytest.approx(whole.high)), "the draws are the same"
