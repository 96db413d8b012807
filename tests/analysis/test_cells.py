"""Numbers as they are printed."""

import pytest

from pipeline.analysis.compare.cells import plain, size


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.012345, "0.0123"), (999.4, "999"), (999.6, "1,000"), (-999.6, "-1,000"), (1234.5, "1,234"), (1e6, "1,000,000")],
)
def test_a_number_has_three_digits_or_is_whole(value: float | None, text: str) -> None:
    assert plain(value) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (999_600, "1 MB"), (1_234_000_000, "1.23 GB"), (2e15, "2,000 TB")])
def test_a_size_has_the_unit_that_keeps_it_below_a_thousand(count: float, text: str) -> None:
    assert size(count) == text
