"""Whole runs on the bundled models, in processes of their own: interrupted, and with engines killed."""

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

from tests.support.commands import COMMAND, running
from tests.support.patience import HANGS_S
from tests.support.runs import chains_of, status


@pytest.mark.torch
def test_ctrl_c_lets_live_chains_end_and_the_run_goes_on_later(tmp_path: Path) -> None:
    with running(tmp_path / "out", "--limit", "48", "--batch-size", "16", chains=48, graph="target") as process:
        while process.poll() is None and not any((tmp_path / "out/calls").glob("*")):  # none may have been answered yet
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        os.kill(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130, error
    assert "waiting up to 10 s for running chains; interrupt again to stop now" in error
    assert f"interrupted; to resume: pipeline resume {tmp_path / 'out'}" in error
    assert "Traceback" not in error
    assert status(tmp_path / "out") == "interrupted"
    before = {row["chain_id"]: row["answer_text"] for row in chains_of(tmp_path / "out") if row["stop_reason"] != "cancelled"}
    assert 0 < len(before) < 48
    done = subprocess.run([*COMMAND, "resume", str(tmp_path / "out")], cwd=tmp_path, capture_output=True, text=True, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    after = {row["chain_id"]: row["answer_text"] for row in chains_of(tmp_path / "out")}
    assert len(after) == len(chains_of(tmp_path / "out")) == 48
    assert {chain: after[chain] for chain in before} == before
    assert status(tmp_path / "out") == "finished"


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
    chains = chains_of(tmp_path / "out")
    assert len({row["problem_id"] for row in chains}) == 24
    assert sum(row["correct"] for row in chains) >= 18
    found = json.loads((tmp_path / "out/run.json").read_text())["engine_statistics"]
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
