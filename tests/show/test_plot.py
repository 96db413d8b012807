"""Charts as values: where marks lie, what axes say, and outlines of every kind of mark."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.show.plot import SIDE, ChartAxis, Mark, path, stacked, up_to

X, Y = ChartAxis(high=10), ChartAxis(high=4)
FEW = st.floats(-1e9, 1e9, allow_nan=False)


@pytest.mark.parametrize(
    ("fields", "outline"),
    [
        ({"kind": "line", "x": [0, 5], "y": [0, 4]}, "M0 10000L5000 0"),
        ({"kind": "line", "x": [0, 5, 11], "y": [0, float("nan"), 1]}, "M0 10000"),
        ({"kind": "band", "x": [0, 10], "y": [4, 4], "low": [2, 0]}, "M0 0L10000 0L10000 10000L0 5000Z"),
        ({"kind": "bars", "x": [0, 5], "until": [5, 10], "y": [1, 0], "low": [0, 0]}, "M0 10000V7500H5000V10000"),
        ({"kind": "dots", "x": [5], "y": [2]}, "M5000 5000h0"),
        ({"kind": "bounds", "x": [5], "y": [3], "low": [1]}, "M5000 7500V2500"),
        ({"kind": "spans", "x": [0, 2, 0], "until": [1, 4, 5], "y": [1, 1, 3]}, "M0 7500H1000m1000 0H4000M0 2500H5000"),
        ({"kind": "line", "x": [], "y": []}, ""),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_a_mark_is_an_outline(fields: dict[str, object], outline: str) -> None:
    assert path(Mark(hue="blue", **fields), X, Y) == outline  # type: ignore[arg-type]


@given(FEW, FEW)
def test_ticks_are_few_and_between_the_ends(one: float, other: float) -> None:
    low, high = sorted((one, other))
    ticks = ChartAxis(low=low, high=high).ticks
    assert len(ticks) <= 9
    assert all(0 <= place <= 100 for place, _ in ticks)


def test_logarithmic_axes_have_powers_or_what_was_run() -> None:
    assert [label for _, label in ChartAxis(low=1, high=1000, log=True).ticks] == [
        "1",
        "2",
        "5",
        "10",
        "20",
        "50",
        "100",
        "200",
        "500",
        "1,000",
    ]
    sizes = ChartAxis(low=0.9, high=70, log=True, at=(1.0, 8.0, 64.0)).ticks
    assert [label for _, label in sizes] == ["1", "8", "64"]
    assert sizes[1][0] - sizes[0][0] == pytest.approx(sizes[2][0] - sizes[1][0], abs=0.1)
    assert ChartAxis(low=1, high=100, log=True).place([0, 10, 1e9]).tolist() == [0, SIDE / 2, SIDE]


def test_parts_are_stacked_without_those_that_have_nothing() -> None:
    edges = np.array([0.0, 1.0, 2.0])
    parts = stacked(edges, [("a", "blue", np.array([1.0, 2.0])), ("none", "red", np.zeros(2)), ("b", "green", np.array([3.0, 0.0]))])
    assert [(mark.name, mark.low.tolist(), mark.y.tolist()) for mark in parts] == [("a", [0, 0], [1, 2]), ("b", [1, 2], [4, 2])]
    assert up_to([]).high == 1.0
    assert up_to([2.0, float("nan")]).high == pytest.approx(2.1)
