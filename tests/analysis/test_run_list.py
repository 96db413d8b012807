"""The line that a run folder has in a list of runs."""

from pathlib import Path

import pytest

from pipeline.analysis.progress import run_progress, run_state
from pipeline.store.rows import ChainRow
from pipeline.store.store import RunStore
from tests.support.rows import blank
from tests.support.run_files import RUN_JSON, write_run_json

START = RUN_JSON["sessions"][0]["started_unix_ns"]
ENDED = {"started_unix_ns": START, "status": "finished", "ended_unix_ns": START + 10 * 10**9}
GOES_ON = {"started_unix_ns": START + 10**12}


@pytest.mark.parametrize(
    ("made", "correct", "accuracy", "made_up"),
    [
        ("model", 0, 0.0, False),
        ("recorded", 1, 0.25, False),
        ("simulated", 0, None, True),
        ("simulated", 1, 0.25, False),
    ],
)
def test_accuracy_is_that_of_the_answers_which_the_engines_state(
    tmp_path: Path, made: str, correct: int, accuracy: float | None, made_up: bool
) -> None:
    totals = {"chains_done": 4, "graded": 4, "correct": correct}
    write_run_json(tmp_path, totals=totals, engine_facts={"target": {"answers": made}})
    found = run_state(tmp_path, "it")
    assert (found.accuracy, found.made_up) == (accuracy, made_up)
    assert found.answers == (None if made == "model" else made)


@pytest.mark.parametrize(("status", "time_s", "rate"), [("finished", 10.0, 0.2), ("running", None, None)])
def test_the_time_of_a_run_that_was_killed_is_not_that_of_its_earlier_session(
    tmp_path: Path, status: str, time_s: float | None, rate: float | None
) -> None:
    sessions = [ENDED] if status == "finished" else [ENDED, GOES_ON]
    write_run_json(tmp_path, status=status, sessions=sessions, totals={"chains_done": 2})
    found = run_state(tmp_path, "it")
    assert (found.wall_time_s, found.problems_per_s) == (time_s, rate)
    assert found.state == {"finished": "finished", "running": "killed"}[status]


@pytest.mark.parametrize(("status", "of"), [("running", None), ("interrupted", 2)])
def test_how_many_chains_a_server_has_is_known_at_its_end(tmp_path: Path, status: str, of: int | None) -> None:
    write_run_json(tmp_path, status=status, served=True, input=RUN_JSON["input"] | {"rows": 2, "chains": 2})
    assert run_state(tmp_path, "it").of == of
    assert run_progress(tmp_path).chains == of


def test_chains_are_counted_by_how_they_ended(tmp_path: Path) -> None:
    ends = [("end", True, "1"), ("end", False, "1"), ("end", None, None)]
    ends += [("error", None, "1"), ("error", None, None), ("cancelled", None, "1")]
    store = RunStore(write_run_json(tmp_path, status="running"))
    for number, (reason, correct, reference) in enumerate(ends * 2):
        fields = {"stop_reason": reason, "correct": correct, "reference_answer": reference}
        store.append("chains", [blank(ChainRow, chain_id=f"p{number}#0", input_row=number + 1, **fields)])
    store.close()
    found = run_progress(tmp_path)
    assert (found.done, found.failed, found.graded, found.correct) == (6, 4, 6, 2)
