"""A run on vLLM's CPU build, one whose target speculates on tokens, and a start that is killed."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal

from pipeline.engine import Engine
from pipeline.options import RunOptions
from tests.support.engines import PLAIN
from tests.support.paths import ROOT, TEST_SET
from tests.support.runs import rows, solve_on

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed here")]


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
