"""The graphs that need vLLM on its CPU build: token-level speculation under each system, and scored candidates."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.session.options import RunOptions
from pipeline.session.run import run
from tests.support.graphs import DECODE, SEEN
from tests.support.paths import ROOT, TEST_SET
from tests.support.runs import chains_of

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed here")]


def solve(folder: Path, name: str, **options: Any) -> dict[str, Any]:
    """The card of a finished run of 24 problems."""
    result = run(RunOptions(graph=ROOT / f"graphs/{name}.yaml", input=TEST_SET, limit=24, output=folder, **options))
    assert (result.exit_code, result.done) == (0, 24), result.error
    kinds, decisions = SEEN[DECODE.get(name, name)]
    assert set(pq.read_table(folder / "calls")["kind"].to_pylist()) <= kinds
    assert set(pq.read_table(folder / "steps")["decision"].to_pylist()) <= decisions
    assert sum(row["correct"] for row in chains_of(folder)) >= 20
    card: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return card


@pytest.mark.parametrize(
    ("name", "settings", "tokens"),
    [
        ("speculative-decoding", ("engines.target.speculative_config.num_speculative_tokens=3",), 3),
        ("speccot-decode", (), 5),
        ("specreason-decode", (), 5),
    ],
)
def test_the_target_speculates(tmp_path: Path, name: str, settings: tuple[str, ...], tokens: int) -> None:
    card = solve(tmp_path / "out", name, settings=settings)
    speculation = card["engine_statistics"]["target"]["speculation"]
    assert len(speculation["accepted_by_position"]) == tokens
    assert 0 < speculation["accepted_tokens"] < speculation["draft_tokens"]


def test_candidates_are_scored(tmp_path: Path) -> None:
    solve(tmp_path / "out", "likelihood", engines=ROOT / "graphs/engines/tiny-vllm.yaml", settings=("candidates=3",))
    steps = [row for row in pq.read_table(tmp_path / "out/steps").to_pylist() if row["verify_kind"]]
    assert {row["decision"] for row in steps} == {"accepted", "fallback"}
    assert all((row["score_value"] >= row["threshold"]) == (row["decision"] == "accepted") for row in steps)
