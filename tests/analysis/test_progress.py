"""How far runs are: the line of a run folder, and rates of counts that somebody looks at again and again."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.analysis.progress import RecentRates, run_state
from tests.support.run_files import RUN_JSON, write_run_json

START = RUN_JSON["sessions"][0]["started_unix_ns"]
ENDED = {"started_unix_ns": START, "status": "finished", "ended_unix_ns": START + 10 * 10**9}
GOES_ON = {"started_unix_ns": START + 10**12}


def answered(made: str, correct: int) -> dict[str, Any]:
    totals = {"chains_done": 4, "graded": 4, "correct": correct}
    return {"totals": totals, "engine_facts": {"target": {"answers": made}}}


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (answered("model", 0), {"accuracy": 0.0, "made_up": False, "answers": None}),
        (answered("recorded", 1), {"accuracy": 0.25, "made_up": False, "answers": "recorded"}),
        (answered("simulated", 0), {"accuracy": None, "made_up": True, "answers": "simulated"}),
        (answered("simulated", 1), {"accuracy": 0.25, "made_up": False}),
        ({"sessions": [ENDED], "totals": {"chains_done": 2}}, {"state": "finished", "wall_time_s": 10.0, "problems_per_s": 0.2}),
        # the time of a run that was killed is not that of its earlier session
        ({"sessions": [ENDED, GOES_ON], "status": "running"}, {"state": "killed", "wall_time_s": None, "problems_per_s": None}),
        # how many chains a server has is known at its end
        ({"status": "running", "served": True}, {"of": None}),
        ({"status": "interrupted", "served": True}, {"of": 1, "folder": "it"}),
    ],
)
def test_the_line_of_a_run(tmp_path: Path, card: dict[str, Any], expected: dict[str, Any]) -> None:
    found = run_state(write_run_json(tmp_path, **card), expected.get("folder", ""))
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.folder == expected.get("folder", tmp_path.name)


def test_rates_are_of_the_last_half_minute() -> None:
    rates = RecentRates("chains")
    rates.look(0.0, {"chains": 0.0})
    assert rates.per_s("chains") is None, "nothing is known before the second look"
    for second in range(1, 661):
        ended = float(second if second <= 600 else 600 + 4 * (second - 600))
        rates.look(float(second), {"chains": ended, "steps": 10 * ended})
    assert (rates.per_s("chains"), rates.per_s("steps")) == (4.0, 40.0)


def test_of_slow_chains_the_window_is_longer() -> None:
    """One chain in ten seconds: the last half minute saw three, too few to tell when the run ends."""
    rates = RecentRates("chains")
    for look in range(1601):
        rates.look(look / 4, {"chains": float(look // 40)})
    assert rates.per_s("chains") == pytest.approx(0.1, rel=0.15)
