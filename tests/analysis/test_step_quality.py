"""Rewards of a run folder, as a table of the schema that `pipeline grade --prm` writes."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.analysis.quality.step_quality import read_quality

SCHEMA = pa.schema(
    [
        ("run_id", pa.string()),
        ("problem_id", pa.string()),
        ("chain_id", pa.string()),
        ("sample_index", pa.int64()),
        ("step_index", pa.int64()),
        ("candidate_index", pa.int64()),
        ("selected", pa.bool_()),
        ("decision", pa.string()),
        ("source_engine", pa.string()),
        ("reward", pa.float64()),
        ("reward_error", pa.string()),
        ("model", pa.string()),
    ]
)


def reward(chain: str, step: int, candidate: int | None, value: float | None, *, decision: str, selected: bool = False) -> dict[str, Any]:
    return {
        "run_id": "r",
        "problem_id": chain.partition("#")[0],
        "chain_id": chain,
        "sample_index": 0,
        "step_index": step,
        "candidate_index": candidate,
        "selected": selected,
        "decision": decision,
        "source_engine": "draft",
        "reward": value,
        "reward_error": None if value is not None else "too long",
        "model": "prm",
    }


def test_rewards_by_step(tmp_path: Path) -> None:
    rows = [
        reward("a#0", 0, None, 0.9, decision="guidance", selected=True),
        reward("a#0", 1, 0, 0.2, decision="accepted"),
        reward("a#0", 1, 1, 0.8, decision="accepted", selected=True),
        reward("a#0", 2, 0, 0.4, decision="accepted", selected=True),
        reward("a#0", 2, 1, None, decision="accepted"),
        reward("b#0", 1, 0, 0.1, decision="fallback"),
        reward("b#0", 1, 1, 0.3, decision="fallback"),
        reward("b#0", 1, None, 0.7, decision="fallback", selected=True),
        reward("failed#0", 1, 0, 1.0, decision="accepted", selected=True),
    ]
    (tmp_path / "rewards").mkdir()
    for part, some in enumerate((rows[:2], rows[2:])):  # a step may lie across parts
        pq.write_table(pa.Table.from_pylist(some, SCHEMA), tmp_path / f"rewards/part-{part:05}.parquet")
    found = read_quality(tmp_path, {"a#0": 0, "b#0": 1}, 2)
    assert found is not None
    assert found.model == "prm"
    np.testing.assert_allclose(found.drafted, [0.5 + 0.4, 0.2])
    np.testing.assert_allclose(found.steps, [2, 1])
    np.testing.assert_allclose(found.selected, [0.8 + 0.4, 0.0])
    np.testing.assert_allclose(found.selected_from, [0.5 + 0.4, 0.0])
    np.testing.assert_allclose(found.selections, [2, 0])
    np.testing.assert_allclose(found.fallback, [0.0, 0.7])
    np.testing.assert_allclose(found.fallbacks, [0, 1])


def test_a_run_that_was_not_scored_has_no_quality(tmp_path: Path) -> None:
    assert read_quality(tmp_path, {}, 0) is None


def test_rewards_that_all_failed_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "rewards").mkdir()
    pq.write_table(pa.Table.from_pylist([reward("a#0", 1, 0, None, decision="accepted")], SCHEMA), tmp_path / "rewards/part-00000.parquet")
    found = read_quality(tmp_path, {"a#0": 0}, 1)
    assert found is not None
    assert found.steps.tolist() == pytest.approx([0])
