"""How sure a model was of a text."""

import math

import pytest

from pipeline.confidence import LIKELIEST, Confidence, confidence_of


def logs(*shares: float) -> list[float]:
    return [math.log(share) for share in shares]


def test_the_four_numbers_of_a_text() -> None:
    found = confidence_of(logs(0.5, 0.125), [logs(0.5, 0.25, 0.25), logs(0.75, 0.125)])
    assert found is not None
    assert found.mean == pytest.approx(-2 * math.log(2))
    assert found.min == pytest.approx(math.log(0.125))
    assert found.first_entropy == pytest.approx(1.5 * math.log(2))
    assert found.margin == pytest.approx((0.25 + 0.625) / 2)
    assert confidence_of([], []) is None


def test_the_entropy_of_the_likeliest_tokens_is_a_lower_bound_with_the_error_that_is_stated() -> None:
    vocabulary = 2000
    weights = [1 / (place + 1) ** 1.2 for place in range(vocabulary)]
    shares = [weight / sum(weights) for weight in weights]
    true = -sum(share * math.log(share) for share in shares)
    for k in (2, 5, LIKELIEST, vocabulary):
        found = confidence_of(logs(shares[0]), [logs(*shares[:k])])
        assert found is not None
        rest = 1 - sum(shares[:k])
        assert -1e-9 <= true - found.first_entropy <= max(rest, 0) * math.log(max(vocabulary - k, 1)) + 1e-9


def test_the_ends_of_the_margin() -> None:
    """Beside one token all others count as the next."""
    assert confidence_of([0.0], [[0.0, -math.inf]]) == Confidence(mean=0.0, min=0.0, first_entropy=0.0, margin=1.0)
    found = confidence_of(logs(0.75, 0.25), [logs(0.75), logs(0.25)])
    assert found is not None
    assert found.margin == pytest.approx((0.5 + 0.0) / 2)


@pytest.mark.parametrize(("field", "value"), [("mean", 0.5), ("min", math.nan), ("first_entropy", -0.5), ("margin", 1.5)])
def test_numbers_that_no_text_has(field: str, value: float) -> None:
    numbers = {"mean": -1.0, "min": -2.0, "first_entropy": 1.0, "margin": 0.5}
    assert Confidence(**numbers).flaw is None
    assert Confidence(**numbers | {field: value}).flaw == f"{value} is not a valid {field} of log probabilities"
