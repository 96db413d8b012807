"""The time of the thinking stage, told in seconds."""

from pathlib import Path

import pytest

from pipeline.analysis.time.thinking import Thinking, read_thinking
from pipeline.stages.answer import AnswerSpec
from pipeline.stages.draft import DraftSpec
from pipeline.stages.generate import GenerateSpec
from pipeline.store.query import Query
from pipeline.store.rows import StepRow
from tests.support.rows import blank
from tests.support.traces import call, chain, plan_of, write


def test_thinking_ends_before_the_answer(tmp_path: Path) -> None:
    """Two samples of one problem; the second one's drafts overlap. A chain that is not asked for counts nowhere."""
    calls = [
        call("p#0", "draft", 0, 1, 4, purpose="draft", stage="draft"),
        call("p#0", "target", 4, 4, 5, purpose="judge", stage="verify"),
        call("p#0", "target", 5, 5, 8, purpose="write", stage="fallback"),
        call("p#0", "target", 8, 8, 20, purpose="answer", stage="answer"),
        call("p#1", "draft", 10, 10, 14, purpose="draft", stage="draft"),
        call("p#1", "draft", 10, 12, 16, purpose="draft", stage="draft"),
        call("p#1", "target", 17, 17, 18, purpose="judge", stage="verify"),
        call("q#0", "target", 0, 0, 50, purpose="write", stage="fallback"),
    ]
    plan = plan_of(draft=DraftSpec(engine="draft", max_tokens=9), answer=AnswerSpec(engine="target"))
    chains = [
        chain("p#0", 0, 20, problem_id="p"),
        chain("p#1", 10, 18, problem_id="p"),
        chain("q#0", 0, 50, problem_id="q", stop_reason="error"),
    ]
    found = read_thinking(Query(write(tmp_path, calls=calls, chains=chains)), plan)
    assert found == [Thinking("p", 8 + 8)]


def test_the_thought_of_a_whole_response_has_its_tokens_share_of_the_decode_time(tmp_path: Path) -> None:
    calls = [
        call("p#0", "target", 0, 0, 10, purpose="write", stage="response", output_tokens=100, decode_time_s=8.0),
        call("q#0", "target", 0, 2, 12, purpose="write", stage="response", output_tokens=50),
        call("r#0", "target", 0, 0, 10, purpose="write", stage="response", output_tokens=60, decode_time_s=9.0),
        call("r#0", "target", 10, 10, 20, purpose="write", stage="response", output_tokens=40, decode_time_s=8.0, step_index=2),
    ]
    steps = [
        blank(StepRow, chain_id="p#0", stage="response", step_token_ids=tuple(range(75)), step_index=1),
        blank(StepRow, chain_id="q#0", stage="response", step_token_ids=tuple(range(50)), step_index=1),
        blank(StepRow, chain_id="r#0", stage="response", step_token_ids=tuple(range(60)), step_index=1),
        blank(StepRow, chain_id="r#0", stage="response", step_token_ids=tuple(range(10)), step_index=2),
    ]
    plan = plan_of(response=GenerateSpec(engine="target", unit="response", max_tokens=100))
    chains = [chain(f"{name}#0", 0, end, problem_id=name) for name, end in (("p", 10), ("q", 12), ("r", 20))]
    found = read_thinking(Query(write(tmp_path, calls=calls, steps=steps, chains=chains)), plan)
    assert [each.seconds for each in found] == pytest.approx([10 - 8 / 4, 12, 20 - 8 * 3 / 4])


def test_a_run_without_calls_thinks_for_no_time(tmp_path: Path) -> None:
    run = write(tmp_path, chains=[chain("p#0", 0, 1, problem_id="p")])
    assert read_thinking(Query(run), plan_of(answer=AnswerSpec(engine="target"))) == [Thinking("p")]
