"""A run on vLLM's CPU build, one whose target speculates on tokens, and a start that is killed."""

import json
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from anyio.from_thread import BlockingPortal

from pipeline.engine import Engine
from pipeline.session.options import RunOptions
from tests.support.commands import begun
from tests.support.engines import DECODE, PLAIN
from tests.support.paths import ROOT, TEST_SET
from tests.support.runs import calls_of, chains_of, solve_on

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed here")]


def test_the_bundled_pair_solves_most_problems_and_the_run_has_the_engines_own_words(
    tmp_path: Path, portal: BlockingPortal, vllm_engines: Mapping[str, Engine]
) -> None:
    options = RunOptions(
        graph=ROOT / "graphs/speccot.yaml", input=TEST_SET, limit=24, output=tmp_path, engines=PLAIN.path, settings=PLAIN.settings
    )
    portal.call(solve_on, vllm_engines, options)
    assert sum(row["correct"] for row in chains_of(tmp_path)) >= 18
    assert {row["error_type"] for row in chains_of(tmp_path)} == {None}
    card = json.loads((tmp_path / "run.json").read_text())
    for role in ("draft", "target"):
        statistics, mine = card["engine_statistics"][role], [row for row in calls_of(tmp_path) if row["engine"] == role]
        assert statistics["requests"] == len(mine)
        assert 0 < statistics["cached_input_tokens"] < statistics["input_tokens"]
        assert statistics["speculation"] is None
    assert {"vllm", "block_size", "kv_cache_tokens"} <= card["engine_facts"]["draft"].keys()
    assert card["engine_facts"]["target"]["dtype"] == "float32"


def test_a_target_that_speculates_on_tokens_says_what_was_accepted(
    tmp_path: Path, portal: BlockingPortal, vllm_engines: Mapping[str, Engine], speculating: Mapping[str, Engine]
) -> None:
    """On the engines that the graph itself names, with another number of speculated tokens than they have there."""
    engines = {"draft": vllm_engines["draft"], "target": speculating["draft_model"]}
    options = RunOptions(graph=ROOT / "graphs/speccot-decode.yaml", input=TEST_SET, limit=24, output=tmp_path, settings=DECODE.settings)
    portal.call(solve_on, engines, options)
    assert sum(row["correct"] for row in chains_of(tmp_path)) >= 18
    speculation = json.loads((tmp_path / "run.json").read_text())["engine_statistics"]["target"]["speculation"]
    assert len(speculation["accepted_by_position"]) == 3
    assert 0 < speculation["accepted_tokens"] < speculation["draft_tokens"]


def under_test(mark: str) -> list[psutil.Process]:
    """The processes that inherited `mark`, whoever their parent is by now."""
    return [p for p in psutil.process_iter(["environ"]) if (p.info["environ"] or {}).get("RUN_UNDER_TEST") == mark]


def is_loading(process: subprocess.Popen[str]) -> bool:
    """True if vLLM's front end has started the process that computes."""
    children = psutil.Process(process.pid).children(recursive=True)
    with suppress(psutil.Error):
        return any("EngineCore" in " ".join(child.cmdline()) for child in children)
    return False


def test_a_program_that_is_killed_while_vllm_loads_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_UNDER_TEST", str(tmp_path))
    engines = tmp_path / "engines.yaml"
    engines.write_text('target: {backend: vllm, model: "bundled:tiny-target", dtype: float32, max_model_len: 2048, kv_cache_gib: 0.25}')
    arguments = ("run", "graphs/target.yaml", "--input", TEST_SET, "--output", tmp_path / "out", "--engines", engines)
    with begun(*arguments, chains=None) as process:
        while not is_loading(process) and process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
        process.kill()
        _, left = psutil.wait_procs(under_test(str(tmp_path)), timeout=10)
    assert [each for each in left if each.status() != psutil.STATUS_ZOMBIE] == []
