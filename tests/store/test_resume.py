"""What an earlier session recorded of a chain is trusted only where the chain comes to the same."""

import pytest

from pipeline.store.resume import ResumedChain, ResumeMismatch


def test_a_step_is_recorded_once_and_another_in_its_place_is_refused() -> None:
    chain = ResumedChain(steps=[(1, 2), (3,)])
    assert [chain.holds(0, [1, 2]), chain.holds(1, (3,)), chain.holds(2, [4])] == [True, True, False]
    with pytest.raises(ResumeMismatch, match="step 1 differs"):
        chain.holds(1, [4])
