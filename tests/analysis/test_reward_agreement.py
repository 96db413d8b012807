"""Scores of speculated steps against rewards: SpecReason figure 7."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.analysis.quality.reward_agreement import agreement, read_scored_steps
from pipeline.store.events import StepRow
from tests.support.rows import blank
from tests.support.traces import CHOOSE, SCORE, write

SCHEMA = pa.schema([("chain_id", pa.string()), ("step_index", pa.int64()), ("candidate_index", pa.int64()), ("reward", pa.float64())])
PLACE = {"p#0": 0, "p#1": 0, "q#0": 1}


def step(chain: str, index: int, score: float, decision: str, **more: Any) -> Any:
    chosen = 0 if decision == "accepted" else None
    fields = {"num_candidates": 1, "chosen_candidate": chosen, **SCORE} | more
    return blank(StepRow, chain_id=chain, step_index=index, decision=decision, score_value=score, **fields)


def given(chain: str, index: int, value: float | None, candidate: int | None = 0) -> dict[str, Any]:
    return {"chain_id": chain, "step_index": index, "candidate_index": candidate, "reward": value}


def folder(run: Path, name: str) -> Path:
    (run / name).mkdir()
    return run / name


def test_rejected_steps_count_as_accepted_ones_do(tmp_path: Path) -> None:
    steps = [
        step("p#0", 1, 2.0, "fallback"),
        step("p#0", 2, 9.0, "accepted"),
        step("p#1", 1, 4.0, "fallback"),
        step("q#0", 1, 7.0, "accepted"),
        step("q#0", 2, 3.0, "accepted"),  # without a reward
        step("q#0", 3, 3.0, "fallback", num_candidates=2),  # of which the score was is not known
        step("q#0", 4, 0.9, "accepted", **CHOOSE),  # chosen among candidates, not scored
        step("lost#0", 1, 9.0, "accepted"),
    ]
    rewards = [
        given("p#0", 1, 0.05),
        given("p#0", 1, 0.99, None),  # of what the target wrote instead
        given("p#0", 2, 1.0),
        given("p#1", 1, 0.0999),
        given("q#0", 1, 0.3),
        given("q#0", 2, None),
        *(given("q#0", 3, 0.5, candidate) for candidate in (0, 1)),
        given("q#0", 4, 0.5),
        given("lost#0", 1, 0.5),
    ]
    pq.write_table(pa.Table.from_pylist(rewards, schema=SCHEMA), folder(tmp_path, "rewards") / "part-00000.parquet")
    scored = read_scored_steps(write(tmp_path, steps=steps), PLACE)
    assert scored is not None
    found = agreement(scored)
    assert found is not None
    assert (found.steps, found.scale) == (4, "score")
    assert found.counts == (2, 0, 0, 1, 0, 0, 0, 0, 0, 1)
    assert [mean.value for mean in found.means] == [3.0, None, None, 7.0, *[None] * 5, 9.0]
    assert found.rank_correlation == pytest.approx(1.0)


def test_without_rewards_there_is_nothing_to_compare(tmp_path: Path) -> None:
    assert read_scored_steps(write(tmp_path, steps=[step("p#0", 1, 2.0, "fallback")]), PLACE) is None
