"""Which thresholds of a choice tell nothing apart, and are said."""

from pathlib import Path

import pytest

from pipeline.session.notices import notices
from pipeline.session.prepare import load_plan


@pytest.mark.parametrize(("engines", "threshold", "said"), [("sim-2xh100", 0.9, True), ("sim-2xh100", 0.0, False), ("tiny", 0.9, False)])
def test_a_threshold_on_what_a_simulated_judge_chooses_is_said_to_reject_all_or_none(engines: str, threshold: float, said: bool) -> None:
    plan = load_plan(Path("speccot"), Path(engines), (f"min_probability={threshold}",))
    found = [each for each in notices(plan) if "equally sure" in each]
    wanted = (
        "warning: stage verify: a simulated judge is equally sure of all that it chooses: a threshold on its probability, 0.9 here, rejects"
    )
    assert [each.startswith(wanted) for each in found] == [True] * said
