"""Whole runs on the bundled models, in processes of their own: interrupted, and with engines killed."""

import json
import signal
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from tests.support.commands import running
from tests.support.patience import HANGS_S
from tests.support.runs import rows


@pytest.mark.torch
def test_engines_killed_and_stopped_in_mid_run_are_restarted_and_its_answers_stay_right(tmp_path: Path) -> None:
    """One of the two is killed, the other one stands still."""
    limits = [option for role in ("draft", "target") for option in ("--set", f"engines.{role}.hang_s=8")]
    with running(tmp_path / "out", "--limit", "24", "--set", "temperature=0", *limits, chains=24) as process:
        workers = psutil.Process(process.pid).children(recursive=True)
        workers[0].kill()
        workers[1].send_signal(signal.SIGSTOP)
        out, error = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, error
    chains = rows(tmp_path / "out", "chains")
    assert len({row["problem_id"] for row in chains}) == 24
    assert sum(row["correct"] for row in chains) >= 18
    found = json.loads((tmp_path / "out/run.json").read_text())["sessions"][-1]["engine_statistics"]
    assert [engine["restarts"] for engine in found.values()] == [1, 1]
    assert all(f"{role} crashed and was restarted once" in out for role in found)
    calls = pq.read_table(tmp_path / "out/calls").to_pylist()
    lost = [row for row in calls if row["error_type"]]
    assert {(row["engine"], row["error_type"], row["attempt"]) for row in lost} == {(role, "EngineDead", 0) for role in found}
    said = {row["engine"]: row["error_message"].removeprefix(f"engine '{row['engine']}' died: ") for row in lost}
    assert sorted(words.startswith("killed by SIGKILL") for words in said.values()) == [False, True]
    assert sorted(words.startswith("it computed nothing for") for words in said.values()) == [False, True]
    assert {row["request_id"] for row in calls if row["attempt"] == 1} == {row["request_id"] for row in lost}
    assert not [worker for worker in workers if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE]
