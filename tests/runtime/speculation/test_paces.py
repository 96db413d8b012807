"""The acceptance and pace of rounds, and the fit of direct mode, in closed form."""

import pytest

from pipeline.runtime.speculation.paces import Acceptance, DirectFit, Rounds, bucket_of


def test_buckets_are_powers_of_two() -> None:
    assert [bucket_of(chains) for chains in (0, 1, 1.4, 1.5, 2, 3, 5, 6, 64)] == [0, 0, 0, 1, 1, 2, 2, 3, 6]


def test_a_pace_is_that_of_the_given_acceptance_whatever_the_window_happened_to_accept() -> None:
    few, many = Rounds(), Rounds()
    for rounds, accepted in ((few, (True,) + 3 * (False,)), (many, (False,) + 3 * (True,))):
        for each in accepted:
            rounds.add(50, 1.0 if each else 3.0, each, 8)
    assert few.pace(0.75) == many.pace(0.75) == pytest.approx(1.5 / 50)
    assert (few.count, few.step_tokens, few.chains) == (4, 50, 8)
    few.add_answer(40, 4.0)
    assert few.pace(0.75) == pytest.approx(2.5 / 60)


def test_an_acceptance_forgets_what_cannot_be_true_any_more() -> None:
    acceptance = Acceptance(0.75)
    for n in range(100):
        acceptance.add(n % 4 > 0, 1)
    assert acceptance.share == pytest.approx(0.75, abs=0.01)
    acceptance.notice(3, 3)
    assert acceptance.share == pytest.approx(0.75, abs=0.01)
    acceptance.notice(8, 0)
    assert acceptance.share < 0.1
    assert acceptance.share < acceptance.above(2.5) < 0.5


def test_the_fit_finds_what_contexts_cost_and_keeps_it() -> None:
    fit = DirectFit()
    for context in range(10_000, 100_000, 5_000):
        fit.observe(16, context, 0.0168 + 5.4e-8 * context)
    assert fit.seconds(16, 200_000) == pytest.approx(0.0276, rel=0.05)
    known = DirectFit(fit.weights)
    known.observe(16, 50_000, 0.0195)
    assert known.seconds(16, 200_000) == pytest.approx(0.0276, rel=0.05)
