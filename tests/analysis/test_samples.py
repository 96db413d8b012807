"""Shares and their uncertainty against values worked out by hand."""

from math import sqrt

import numpy as np
import pytest

from pipeline.analysis.quality.samples import Interval, interval, pass_at, wilson


def test_one_sample_a_problem_gives_wilsons_interval() -> None:
    # Newcombe 1998, table I: 81 of 263 gives 0.2553 to 0.3662, 0 of 20 gives 0 to 0.1611, 1 of 29 gives 0.0061 to 0.1718.
    for right, trials, low, high in ((81, 263, 0.2553, 0.3662), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)):
        found = interval(np.arange(trials), np.arange(trials) < right)
        assert found is not None
        assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))
        assert found.method == "wilson"


def test_several_samples_a_problem_are_clusters() -> None:
    # Means of the problems: 1, 1/2, 0, so the mean is 1/2 and the standard deviation 1/2 over three of them.
    found = interval(np.repeat([7, 3, 9], 4), np.array([1, 1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 0]))
    half = 1.959964 * 0.5 / sqrt(3)
    assert found == Interval(pytest.approx(max(0, 0.5 - half)), pytest.approx(min(1, 0.5 + half)), "clusters")


def test_clusters_of_unequal_size() -> None:
    # Problem 1: 1, 1, 0; problem 2: 0. Mean 1/2; sums of deviations 1/2 and -1/2; se = sqrt(2 / 1 * (1/4 + 1/4)) / 4 = 1/4.
    found = interval(np.array([1, 1, 1, 2]), np.array([1, 1, 0, 0]))
    assert found == Interval(pytest.approx(0.5 - 1.959964 / 4), pytest.approx(0.5 + 1.959964 / 4), "clusters")


def test_samples_that_say_the_same_add_nothing() -> None:
    once = interval(np.arange(40), np.arange(40) % 4 > 0)
    often = interval(np.repeat(np.arange(40), 50), np.repeat(np.arange(40) % 4 > 0, 50))
    assert once is not None
    assert often is not None
    assert often.high - often.low == pytest.approx(once.high - once.low, rel=0.06)


def test_where_all_agree_the_interval_is_not_empty() -> None:
    everything = interval(np.repeat(np.arange(10), 8), np.ones(80))
    assert everything == wilson(1.0, 10) == Interval(pytest.approx(0.7225, abs=5e-5), pytest.approx(1.0), "wilson")
    assert interval(np.zeros(4), np.array([1, 0, 1, 1])) == wilson(0.75, 1)
    assert interval(np.empty(0), np.empty(0)) is None


def test_pass_at_k() -> None:
    # Problem 1: 1 of 4 right, problem 2: 4 of 4, problem 3: 0 of 4.
    found = pass_at(np.array([4, 4, 4]), np.array([1, 4, 0]))
    assert found == {1: pytest.approx(1.25 / 3), 2: pytest.approx((0.5 + 1) / 3), 4: pytest.approx(2 / 3)}


def test_pass_at_k_takes_problems_with_k_samples() -> None:
    # Problem 1: 1 of 3 right: 1 - C(2, 2) / C(3, 2) = 2/3; problem 2 has one sample only.
    assert pass_at(np.array([3, 1]), np.array([1, 0])) == {1: pytest.approx((1 / 3 + 0) / 2), 2: pytest.approx(2 / 3)}
    assert pass_at(np.empty(0, int), np.empty(0, int)) == {}


def test_of_many_samples_pass_at_k_stays_exact() -> None:
    assert pass_at(np.array([2000]), np.array([1]))[1024] == pytest.approx(1024 / 2000)
