"""How far runs are: the line of a run folder, and rates of counts that somebody looks at again and again."""

from pathlib import Path

import pytest

from pipeline.analysis.progress import RecentRates, run_state
from tests.support.run_files import RUN_JSON, write_run_json

START = RUN_JSON["sessions"][0]["started_unix_ns"]
ENDED = {"started_unix_ns": START, "status": "finished", "ended_unix_ns": START + 10 * 10**9}
GOES_ON = {"started_unix_ns": START + 10**12}


@pytest.mark.parametrize(
    ("made", "correct", "accuracy", "made_up"),
    [("model", 0, 0.0, False), ("recorded", 1, 0.25, False), ("simulated", 0, None, True), ("simulated", 1, 0.25, False)],
)
def test_accuracy_is_of_the_answers_that_the_engines_state(
    tmp_path: Path, made: str, correct: int, accuracy: float | None, made_up: bool
) -> None:
    totals = {"chains_done": 4, "graded": 4, "correct": correct}
    write_run_json(tmp_path, totals=totals, engine_facts={"target": {"answers": made}})
    found = run_state(tmp_path)
    assert (found.folder, found.accuracy, found.made_up) == (tmp_path.name, accuracy, made_up)
    assert found.answers == (None if made == "model" else made)


@pytest.mark.parametrize(("status", "time_s", "rate"), [("finished", 10.0, 0.2), ("running", None, None)])
def test_the_time_of_a_run_that_was_killed_is_not_that_of_its_earlier_session(
    tmp_path: Path, status: str, time_s: float | None, rate: float | None
) -> None:
    sessions = [ENDED] if status == "finished" else [ENDED, GOES_ON]
    write_run_json(tmp_path, status=status, sessions=sessions, totals={"chains_done": 2})
    found = run_state(tmp_path, "it")
    assert (found.folder, found.wall_time_s, found.problems_per_s) == ("it", time_s, rate)
    assert found.state == {"finished": "finished", "running": "killed"}[status]


@pytest.mark.parametrize(("status", "of"), [("running", None), ("interrupted", 2)])
def test_how_many_chains_a_server_has_is_known_at_its_end(tmp_path: Path, status: str, of: int | None) -> None:
    write_run_json(tmp_path, status=status, served=True, input=RUN_JSON["input"] | {"rows": 2, "chains": 2})
    assert run_state(tmp_path).of == of


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
