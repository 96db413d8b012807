"""Whole runs on vLLM's CPU build: the same answers as the torch engine, real problems, speculation, interruption, death."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal

from pipeline.analysis.headline.figures import Summary
from pipeline.analysis.summary import summarize
from pipeline.engine import Engine
from pipeline.session.options import RunOptions
from tests.support.engines import PLAIN, EnginesFile
from tests.support.paths import ROOT, TEST_SET
from tests.support.runs import chains_of, solve_on

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed here")]


def solve(portal: BlockingPortal, engines: Mapping[str, Engine], file: EnginesFile, folder: Path, **options: Any) -> Summary:
    """A finished run of SpecCoT on the test set, on open engines."""
    chosen: dict[str, Any] = {"graph": ROOT / "graphs/speccot.yaml", "input": TEST_SET, "limit": 100, "output": folder} | options
    chosen |= {"engines": file.path, "settings": (*file.settings, *options.get("settings", ()))}
    portal.call(solve_on, engines, RunOptions(**chosen))
    return summarize(folder)


@pytest.fixture(scope="module")
def greedy(portal: BlockingPortal, vllm_engines: Mapping[str, Engine], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 problems without any randomness."""
    folder = tmp_path_factory.mktemp("greedy") / "vllm"
    solve(portal, vllm_engines, PLAIN, folder, settings=("temperature=0",))
    return folder


def test_greedy_answers_are_those_of_the_torch_engine(greedy: Path, greedy_run: Path) -> None:
    torch, vllm = ({row["problem_id"]: row["answer"] for row in chains_of(folder)} for folder in (greedy_run, greedy))
    assert len(torch) == 100
    assert sum(vllm[key] == torch[key] for key in torch) >= 95


def test_the_prefix_cache_and_the_engines_own_words_are_in_the_run(greedy: Path) -> None:
    summary = summarize(greedy)
    for role in ("draft", "target"):
        assert 0 < summary.engines[role].cached_input_tokens < summary.engines[role].input_tokens
        assert summary.engines[role].speculated_tokens is None
    card = json.loads((greedy / "run.json").read_text())
    assert card["engine_facts"]["target"]["dtype"] == "float32"
    assert card["engine_statistics"]["target"]["cached_input_tokens"] == summary.engines["target"].cached_input_tokens
    assert {"vllm", "block_size", "kv_cache_tokens"} <= card["engine_facts"]["draft"].keys()
