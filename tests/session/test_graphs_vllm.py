"""The graphs that need vLLM on its CPU build: token-level speculation under each system, and scored candidates."""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from anyio.from_thread import BlockingPortal

from pipeline.engine import Engine
from pipeline.session.options import RunOptions
from tests.support.engines import DECODE, PLAIN
from tests.support.graphs import DECODE as DECODED
from tests.support.graphs import SEEN
from tests.support.paths import ROOT, TEST_SET
from tests.support.runs import chains_of, solve_on

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed here")]


def solve(portal: BlockingPortal, opened: Mapping[str, Engine], folder: Path, name: str, **options: Any) -> dict[str, Any]:
    """The card of a finished run of 24 problems on open engines."""
    graph = ROOT / f"graphs/{name}.yaml"
    portal.call(solve_on, opened, RunOptions(graph=graph, input=TEST_SET, limit=24, output=folder, **options))
    kinds, decisions = SEEN[DECODED.get(name, name)]
    assert set(pq.read_table(folder / "calls")["kind"].to_pylist()) <= kinds
    assert set(pq.read_table(folder / "steps")["decision"].to_pylist()) <= decisions
    assert sum(row["correct"] for row in chains_of(folder)) >= 20
    card: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return card


@pytest.mark.parametrize(
    ("name", "roles"),
    [("speculative-decoding", ["target"]), ("speccot-decode", ["draft", "target"]), ("specreason-decode", ["draft", "target"])],
)
def test_the_target_speculates(
    tmp_path: Path,
    portal: BlockingPortal,
    vllm_engines: Mapping[str, Engine],
    speculating: Mapping[str, Engine],
    name: str,
    roles: list[str],
) -> None:
    """On the engines that the graph itself names, with another number of speculated tokens than they have there."""
    engines = {"draft": vllm_engines["draft"], "target": speculating["draft_model"]}
    settings = tuple(setting for setting in DECODE.settings if setting.split(".")[1] in roles)
    card = solve(portal, engines, tmp_path / "out", name, settings=settings)
    assert sorted(card["engines"]) == roles
    speculation = card["engine_statistics"]["target"]["speculation"]
    assert len(speculation["accepted_by_position"]) == 3
    assert 0 < speculation["accepted_tokens"] < speculation["draft_tokens"]


def test_candidates_are_scored(tmp_path: Path, portal: BlockingPortal, vllm_engines: Mapping[str, Engine]) -> None:
    solve(portal, vllm_engines, tmp_path / "out", "likelihood", engines=PLAIN.path, settings=(*PLAIN.settings, "candidates=3"))
    steps = [row for row in pq.read_table(tmp_path / "out/steps").to_pylist() if row["verify_kind"]]
    assert {row["decision"] for row in steps} == {"accepted", "fallback"}
    assert all((row["score_value"] >= row["threshold"]) == (row["decision"] == "accepted") for row in steps)
