"""Whole runs on the bundled models: on torch in processes that are killed, and on vLLM's CPU build."""

import json
import signal
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from anyio.from_thread import BlockingPortal

from pipeline.engine import Engine
from pipeline.options import RunOptions
from tests.support.commands import running
from tests.support.engines import PLAIN
from tests.support.paths import ROOT, TEST_SET
from tests.support.patience import HANGS_S
from tests.support.runs import rows, solve_on


@pytest.mark.torch
def test_engines_killed_and_stopped_in_mid_run_are_restarted_and_its_answers_stay_right(tmp_path: Path) -> None:
    """One of the two is killed, the other one stands still."""
    limits = [option for role in ("draft", "target") for option in ("--set", f"engines.{role}.hang_s=8")]
    with running(tmp_path / "out", "--limit", "24", "--set", "temperature=0", *limits) as process:
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
    assert "engines crashed and were restarted: target once, draft once" in out
    calls = pq.read_table(tmp_path / "out/calls").to_pylist()
    lost = [row for row in calls if row["error_type"]]
    assert {(row["engine"], row["error_type"], row["attempt"]) for row in lost} == {(role, "EngineDead", 0) for role in found}
    said = {row["engine"]: row["error_message"].removeprefix(f"engine '{row['engine']}' died: ") for row in lost}
    assert sorted(words.startswith("killed by SIGKILL") for words in said.values()) == [False, True]
    assert sorted(words.startswith("it computed nothing for") for words in said.values()) == [False, True]
    assert {row["request_id"] for row in calls if row["attempt"] == 1} == {row["request_id"] for row in lost}
    assert not [worker for worker in workers if worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed here")
def test_the_bundled_pair_solves_most_problems_and_the_run_has_the_engines_own_words(
    tmp_path: Path, portal: BlockingPortal, vllm_engines: Mapping[str, Engine]
) -> None:
    options = RunOptions(
        graph=ROOT / "graphs/speccot.yaml", input=(str(TEST_SET),), limit=24, output=tmp_path, engines=PLAIN.path, settings=PLAIN.settings
    )
    portal.call(solve_on, vllm_engines, options)
    assert sum(row["correct"] for row in rows(tmp_path, "chains")) >= 18
    assert {row["error_type"] for row in rows(tmp_path, "chains")} == {None}
    card = json.loads((tmp_path / "run.json").read_text())
    for role in ("draft", "target"):
        statistics = card["sessions"][-1]["engine_statistics"][role]
        mine = [row for row in rows(tmp_path, "calls") if row["engine"] == role]
        assert statistics["requests"] == len(mine)
        assert 0 < statistics["cached_input_tokens"] < statistics["input_tokens"]
        assert statistics["speculation"] is None
    assert {"vllm", "block_size", "kv_cache_tokens"} <= card["engine_facts"]["draft"].keys()
    assert card["engine_facts"]["target"]["dtype"] == "float32"
