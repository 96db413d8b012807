"""Steps counted by hand: lengths, acceptance by number and by score, and what the verifier's number was worth."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.analysis.quality.samples import wilson
from pipeline.analysis.quality.step_counts import StepCounts, count_steps
from pipeline.analysis.quality.verdict_values import Grades
from pipeline.store.columns import schema_of
from pipeline.store.events import RewardRow, StepRow
from pipeline.store.tables import TraceStore
from tests.support.traces import CHOOSE, SCORE

Blank = Callable[..., Any]
GRADES = Grades({"a#0": 0, "a#1": 1, "b#0": 2, "c#0": 3}, np.array([1, 1, 2, 3]), np.array([1, 0, 1, -1]))
"""Problem a was tried twice, right and wrong; b is right; c was not graded."""


def step(blank: Blank, chain: str, index: int, decision: str, tokens: int, **more: Any) -> StepRow:
    lengths: tuple[int, ...] = more.pop("candidates", ())
    row: StepRow = blank(
        StepRow,
        chain_id=chain,
        step_index=index,
        decision=decision,
        step_token_ids=(7,) * tokens,
        candidate_tokens=lengths,
        num_candidates=len(lengths),
        **more,
    )
    return row


def chosen(blank: Blank, chain: str, index: int, value: float, place: int | None, *lengths: int) -> StepRow:
    decision = "fallback" if place is None else "accepted"
    tokens = 3 if place is None else lengths[place]
    return step(blank, chain, index, decision, tokens, candidates=lengths, score_value=value, chosen_candidate=place, **CHOOSE)


@pytest.fixture
def folder(tmp_path: Path, blank: Blank) -> Path:
    store = TraceStore(tmp_path)
    store.append(
        "steps",
        [
            step(blank, "a#0", 0, "guidance", 8),
            chosen(blank, "a#0", 1, 0.97, 1, 4, 5),
            chosen(blank, "a#0", 2, 0.62, None, 6, 6),
            chosen(blank, "a#1", 1, 0.97, 0, 2, 2),
            chosen(blank, "b#0", 1, 0.62, 0, 1, 9),
            chosen(blank, "c#0", 1, 1.0, 0, 4, 4),
            chosen(blank, "unknown#0", 1, 0.97, 0, 4, 4),
            step(blank, "b#0", 2, "accepted", 5, candidates=(5,), score_value=9.0, threshold=7.0, chosen_candidate=0, **SCORE),
            step(blank, "b#0", 3, "fallback", 2, candidates=(5,), score_value=6.9, threshold=7.0, **SCORE),
        ],
    )
    store.close()
    return tmp_path


def lengths_of(counts: StepCounts) -> dict[str, dict[int, int]]:
    return {kind: {tokens: int(n) for tokens, n in enumerate(each) if n} for kind, each in counts.lengths.items()}


def test_lengths_are_counted_by_what_became_of_the_text(folder: Path) -> None:
    assert lengths_of(count_steps(folder, GRADES)) == {
        "guidance": {8: 1},
        "accepted": {5: 2, 2: 1, 1: 1, 4: 2},
        "fallback": {3: 1, 2: 1},
        "rejected": {6: 2, 5: 1},
        "not_chosen": {4: 3, 2: 1, 9: 1},
    }


def test_acceptance_by_step_number(folder: Path) -> None:
    counts = count_steps(folder, GRADES)
    assert counts.verified.tolist() == [0, 5, 2, 1]
    assert counts.accepted.tolist() == [0, 5, 1, 0]


def test_acceptance_by_score(folder: Path) -> None:
    scores = count_steps(folder, GRADES).scores
    choose, score = scores["choose"], scores["score"]
    assert {round(float(choose.edges[i]), 2): int(n) for i, n in enumerate(choose.accepted) if n} == {0.6: 1, 0.95: 4}, "1.0 is in the last"
    assert {round(float(choose.edges[i]), 2): int(n) for i, n in enumerate(choose.rejected) if n} == {0.6: 1}
    assert (choose.threshold, score.threshold) == (None, 7.0)
    assert score.accepted.tolist() == [0] * 9 + [1]
    assert score.rejected.tolist() == [0] * 7 + [1, 0, 0]


def test_what_is_accepted_and_right_counts_graded_chains_only_with_problems_as_clusters(folder: Path) -> None:
    right = count_steps(folder, GRADES).scores["choose"].right
    known = {place: share for place, share in enumerate(right) if share.count}
    assert [(share.count, share.share) for share in known.values()] == [(1, 1.0), (2, 0.5)]
    assert known[19].interval == wilson(0.5, 1), "both steps are of one problem: one trial"
    assert right[0].share is None
    assert right[0].interval is None


def test_rewards_of_accepted_candidates(folder: Path) -> None:
    assert count_steps(folder, GRADES).scores["choose"].good == ()
    rows = [
        ("a#0", 1, 0, False, 0.9),
        ("a#0", 1, 1, True, 0.5),
        ("a#1", 1, 0, True, 0.49),
        ("b#0", 1, 0, True, None),
        ("a#0", 2, None, True, 0.8),
        ("c#0", 1, 0, True, 1.0),
    ]
    names = ("chain_id", "step_index", "candidate_index", "selected", "reward")
    records = [dict(zip(names, row, strict=True)) for row in rows]
    (folder / "rewards").mkdir()
    schema = pa.schema([field for field in schema_of(RewardRow) if field.name in names])
    pq.write_table(pa.Table.from_pylist(records, schema), folder / "rewards/part-00000.parquet")
    good = count_steps(folder, GRADES).scores["choose"].good
    assert [(place, share.count, share.share) for place, share in enumerate(good) if share.count] == [(19, 3, pytest.approx(2 / 3))]


def test_no_steps_no_counts(tmp_path: Path) -> None:
    counts = count_steps(tmp_path, GRADES)
    assert (counts.lengths, counts.scores) == ({}, {})
    assert not counts.verified.any()
