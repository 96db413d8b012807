"""Rates of counts that somebody looks at again and again."""

import pytest

from pipeline.analysis.progress import LEAST_ENDED, WINDOW_S, RecentRates


def ended(chains_per_s: float, seconds: int, every: float = 1.0, rates: RecentRates | None = None, start: float = 0.0) -> RecentRates:
    """Rates after so many seconds of chains that end at this rate, and ten steps for each."""
    rates = rates or RecentRates("chains")
    before = rates.last("chains") if start else 0.0
    looks = int(seconds / every)
    for look in range(looks + 1):
        ended = before + chains_per_s * look * every
        rates.look(start + look * every, {"chains": ended, "steps": 10 * ended})
    return rates


def test_nothing_is_known_before_the_second_look() -> None:
    rates = RecentRates("chains")
    rates.look(0.0, {"chains": 0.0})
    assert rates.per_s("chains") is None
    rates.look(2.0, {"chains": 1.0})
    assert rates.per_s("chains") == 0.5


def test_what_was_before_the_window_does_not_count() -> None:
    rates = ended(1.0, 600)
    ended(4.0, 60, rates=rates, start=600.0)
    assert rates.per_s("chains") == pytest.approx(4.0)
    assert rates.per_s("steps") == pytest.approx(40.0)


def test_of_slow_chains_the_window_is_longer() -> None:
    """One chain in ten seconds: the last half minute saw three, too few to tell when the run ends."""
    rates = RecentRates("chains")
    for second in range(401):
        rates.look(float(second), {"chains": float(second // 10), "steps": float(second)})
    assert rates.per_s("chains") == pytest.approx(0.1, rel=0.15)
    assert rates.per_s("steps") == 1.0


def test_little_is_kept_however_long_it_goes_on() -> None:
    rates = ended(2.0, 3600, every=0.25)
    assert rates.kept <= 4 * (WINDOW_S + LEAST_ENDED) + 8
