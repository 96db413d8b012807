"""Bins of a verdict's values are those of its scale; open ends come from the values."""

import math
from itertools import pairwise

import numpy as np
import pytest

from pipeline.analysis.quality.step_counts import edges_of, round_width
from pipeline.reasoning.chain import Scale


def edges(values: list[float], **scale: object) -> list[float]:
    found: list[float] = edges_of(Scale("value", **scale), np.array(values)).tolist()  # type: ignore[arg-type]
    return found


def test_two_ends_are_divided_evenly_whatever_the_values() -> None:
    assert edges([0.4], low=0.0, high=1.0) == pytest.approx([i / 20 for i in range(21)])


def test_whole_numbers_stand_in_the_middle_of_their_bins() -> None:
    assert edges([], low=0.0, high=9.0, integers=True) == [i - 0.5 for i in range(11)]
    assert edges([1, 3], integers=True) == [0.5, 1.5, 2.5, 3.5]
    wide = edges([1.0, 1000.0], low=1.0, high=1000.0, integers=True)
    assert len(wide) <= 42
    assert wide[0] == 0.5
    assert wide[-1] > 1000
    assert {b - a for a, b in pairwise(wide)} == {25}


def test_an_open_end_goes_as_far_as_the_values() -> None:
    assert edges([-1.9, -0.3, 0.0], high=0.0) == pytest.approx([-2 + 0.2 * i for i in range(11)])
    assert edges([0.0, 41.0], low=0.0) == pytest.approx([0, 5, 10, 15, 20, 25, 30, 35, 40, 45])
    both = edges([-3.2, 7.7])
    assert both[0] <= -3.1
    assert both[-1] >= 7.6
    assert len(both) <= 15


def test_outliers_and_infinite_values_do_not_stretch_the_bins() -> None:
    values = [-math.inf, -500.0, *[-1.0 - i / 1000 for i in range(1000)]]
    assert -4 <= edges(values, high=0.0)[0] < -1.9


def test_tiny_values_have_bins_too() -> None:
    assert edges([0.0, 3e-15], low=0.0) == pytest.approx([i * 5e-16 for i in range(7)])


@pytest.mark.parametrize("scale", [{}, {"low": 2.0}, {"high": 2.0}, {"integers": True}, {"low": 0.0, "high": 1.0}])
@pytest.mark.parametrize("values", [[], [-math.inf], [1.5], [5.0, 5.0]])
def test_there_is_always_a_bin(scale: dict[str, float], values: list[float]) -> None:
    found = edges(values, **scale)
    assert len(found) >= 2
    assert all(a < b for a, b in pairwise(found))


def test_round_widths() -> None:
    assert [round_width(width) for width in (0, 0.11, 0.2, 0.3, 3, 7, 1e-9)] == pytest.approx([1, 0.2, 0.2, 0.5, 5, 10, 1e-9])
