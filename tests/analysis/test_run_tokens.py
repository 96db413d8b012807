"""Tokens of problems by role, and those after the thought."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.analysis.compare.runs import read_chains, read_tokens
from pipeline.analysis.quality.step_texts import read_texts
from pipeline.stages.answer import AnswerSpec
from pipeline.stages.draft import DraftSpec
from pipeline.stages.generate import GenerateSpec
from pipeline.store.events import CallRow, ChainRow, StepRow
from pipeline.store.run_store import RunStore
from tests.support.traces import plan_of

Blank = Callable[..., Any]


def test_tokens_by_role_and_after_the_thought(tmp_path: Path, blank: Blank) -> None:
    """A response holds its answer: what its thought leaves. The last row of a chain counts, and failed chains do not."""
    store = RunStore(tmp_path)
    for chain, reason in (("p#0", "cancelled"), ("p#0", "thought_closed"), ("p#1", "thought_closed"), ("q#0", "error")):
        store.append("chains", [blank(ChainRow, chain_id=chain, problem_id=chain[0], stop_reason=reason, thought_tokens=4, correct=True)])
    calls = [("p#0", "response", "target", 9), ("p#1", "say", "target", 3), ("p#1", "draft", "draft", 20), ("q#0", "draft", "draft", 50)]
    store.append("calls", [blank(CallRow, chain_id=c, stage=stage, engine=role, output_tokens=n) for c, stage, role, n in calls])
    store.append("steps", [blank(StepRow, chain_id="p#0", stage="response", step_token_ids=(1, 2, 3, 4))])
    store.append("steps", [blank(StepRow, chain_id="p#1", stage="draft", step_token_ids=(1, 2, 3, 4))])
    store.close()
    plan = plan_of(
        response=GenerateSpec(engine="target", unit="response", max_tokens=9),
        say=AnswerSpec(engine="target"),
        draft=DraftSpec(engine="draft", max_tokens=9),
    )
    chains = read_chains(tmp_path)
    assert (chains.problem_ids, chains.failed, chains.graded.row.tolist()) == (("p",), 1, [1, 2])
    assert chains.means("thought_tokens").tolist() == [4.0]
    found = read_tokens(tmp_path, plan, chains)
    assert found.answer.tolist() == [(9 - 4) + 3]
    assert {role: tokens.tolist() for role, tokens in found.by_role.items()} == {"target": [12.0], "draft": [20.0]}


def test_a_folder_without_parts_has_no_chains(tmp_path: Path) -> None:
    found = read_chains(tmp_path)
    assert (found.problem_ids, found.failed, len(found.graded.correct)) == ((), 0, 0)
    assert read_tokens(tmp_path, plan_of(), found).answer.tolist() == pytest.approx([])
    np.testing.assert_array_equal(read_texts(tmp_path, {}, 0).keys(), [])
