"""The papers' printed speed-ups, taken apart, multiply to what they print."""

import pytest

from bench import speed_ups

PRINTED = {
    speed_ups.SPECCOT[speed_ups.QWQ]: (3.3, 3.1, 2.3, 2.0),
    speed_ups.SPECCOT[speed_ups.R1_32B]: (3.2, 4.1, 1.9, 1.7),
    speed_ups.SCOT: (2.26, 2.92, 2.31, 2.18, 1.90),
}
"""The column r of SpecCoT's table 2, and that of SCoT's table 1."""


@pytest.mark.parametrize(("rows", "ratios"), PRINTED.items(), ids=["speccot-qwq", "speccot-r1", "scot"])
def test_the_factors_multiply_to_the_printed_speed_up(rows: tuple[speed_ups.Printed, ...], ratios: tuple[float, ...]) -> None:
    for printed, r in zip(rows, ratios, strict=True):
        found, tokens, rate = printed.factors
        assert tokens * rate == pytest.approx(found)
        assert found == pytest.approx(r, abs=0.1), printed.data
