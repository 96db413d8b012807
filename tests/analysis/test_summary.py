"""A run folder in numbers, counted by hand; folders that are cut short, resumed, empty or none at all."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.analysis.headline import headline
from pipeline.analysis.summary import EngineSummary, StageSummary, Summary, summarize
from pipeline.errors import InputError
from pipeline.store.rows import StepRow
from pipeline.store.store import RunStore
from tests.support import traces
from tests.support.rows import blank
from tests.support.run_files import RUN_JSON, write_run_json
from tests.support.traces import SCORE, card, write


def call(engine: str, stage: str, wait: float, submit: int, end: int, tokens: tuple[int, int, int], **more: Any) -> Any:
    counts = dict(zip(("input_tokens", "cached_input_tokens", "output_tokens"), tokens, strict=True))
    return traces.call("p1#0", engine, submit - wait, submit, end, stage=stage, **counts, **more)


def chain(row: int, start: int, end: int, stop_reason: str, **more: Any) -> Any:
    return traces.chain(f"p{row}#0", start, end, problem_id=f"p{row}", input_row=row, stop_reason=stop_reason, **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three problems at batch size 2: one right, one wrong, one failed."""
    calls = [
        call("draft", "draft", 0.5, 0, 4, (100, 50, 40), purpose="draft"),
        call("target", "verify", 1.5, 2, 6, (200, 150, 1), purpose="judge"),
        call("target", "fallback", 0.0, 6, 10, (200, 200, 9), error_type="RequestRefused"),
    ]
    steps: list[dict[str, Any]] = [
        {"decision": "guidance", "step_tokens": 8},
        {"decision": "accepted", "step_tokens": 30, "chosen_candidate": 0, "draft_tokens": 50, "verify_kind": "choose"},
        {"decision": "accepted", "step_tokens": 10, "chosen_candidate": 0, "draft_tokens": 10, "verify_kind": "choose"},
        {"decision": "fallback", "step_tokens": 12, "draft_tokens": 25, "verify_kind": "score"},
    ]
    chains = [
        chain(1, 0, 5, "thought_closed", correct=True),
        chain(2, 0, 8, "token_budget", correct=False),
        chain(3, 5, 10, "error", error_type="RequestRefused", error_message="too long"),
    ]
    session = {"batch_size": 2, "sessions": card(0, 10)["sessions"]}
    return write(tmp_path, calls=calls, steps=[blank(StepRow, **step) for step in steps], chains=chains, card=session)


def test_failed_chains_count_as_wrong_and_are_said(tmp_path: Path) -> None:
    """Of four chains with a reference one failed and one was cancelled; a fifth failed without a reference."""
    asked = {"reference_answer": "7", "answer": "7"}
    rows = [
        chain(1, 0, 5, "thought_closed", correct=True, answer_text=" \n", **asked),
        chain(2, 0, 5, "thought_closed", correct=True, answer_text="7", thought_tokens=4, **asked),
        chain(3, 0, 5, "error", error_type="RequestRefused", answer_text="", reference_answer="7"),
        chain(4, 0, 5, "cancelled", reference_answer="7"),
        chain(5, 0, 5, "error", error_type="RequestRefused"),
    ]
    found = summarize(write(tmp_path, chains=rows))
    assert found.empty_answers == 1
    assert (found.graded, found.correct, found.failed, found.pass_at) == (3, 2, 2, {"1": pytest.approx(2 / 3)})
    assert found.accuracy == pytest.approx(2 / 3)
    said = next(row for row in headline(found).rows if row.name == "accuracy")
    assert said.figure == "66.7 %"
    assert said.text.startswith("2 of 3, too few problems for an interval")


def test_verifications_that_prefer_other_tokens_are_counted(tmp_path: Path) -> None:
    steps = [blank(StepRow, decision="fallback", score_mass=mass, score_probs=(1.0,), **SCORE) for mass in [1.0] * 9 + [0.3]]
    assert summarize(write(tmp_path, steps=steps, chains=[chain(1, 0, 5, "thought_closed")])).doubtful_share == 0.1


def engine_summary(*values: Any, **others: Any) -> EngineSummary:
    """Values of the first fields; of a run without repetitions and without speculation inside engines."""
    names = EngineSummary.__struct_fields__
    rest = {"retried_calls": 0, "restarts": None, "speculated_tokens": None, "accepted_speculated_tokens": None}
    return EngineSummary(**dict(zip(names, values, strict=False)) | rest | others)


def test_every_number(folder: Path) -> None:
    found = summarize(folder)
    assert found == Summary(
        run=folder.name, status="finished", graph="target", models={"target": "large"}, schedule="pipelined", batch_size=2,
        wall_time_s=10.0, planned=3, problems=3, chains=3, done=2, empty_answers=2, failed=1, cancelled=0, example="p1", samples=1,
        graded=2, correct=1, accuracy=0.5, accuracy_interval=None, pass_at={"1": 0.5}, majority_accuracy=None, problems_per_s=0.2,
        steps=4, verified_steps=3, accepted_steps=2, fallback_steps=1, unverified_steps=0, acceptance_rate=2 / 3,
        output_tokens=50, kept_tokens=0, kept_tokens_per_s=0.0, thought_tokens=60, draft_share=40 / 60, draft_tokens=40,
        wasted_draft_tokens=0,
        engines={
            "draft": engine_summary(1, 100, 0.5, 40, 4.0, pytest.approx(0.4), pytest.approx(0.4)),
            "target": engine_summary(2, 400, 0.875, 10, 8.0, pytest.approx(0.8), pytest.approx(0.8)),
        },
        stages={
            "draft": StageSummary(1, 0, 100, 40, 4.0, 0.5),
            "verify": StageSummary(1, 0, 200, 1, 4.0, 1.5),
            "fallback": StageSummary(1, 1, 200, 9, 4.0, 0.0),
        },
        stop_reasons={"thought_closed": 1, "token_budget": 1, "error": 1},
        errors={"RequestRefused": 1},
        error_examples={"RequestRefused": "too long"},
    )  # fmt: skip


def test_a_run_without_rows(tmp_path: Path) -> None:
    found = summarize(write(tmp_path))
    assert (found.chains, found.steps, found.engines, found.stages, found.errors) == (0, 0, {}, {}, {})
    assert [found.accuracy, found.problems_per_s, found.acceptance_rate, found.draft_share] == [None] * 4


def test_no_run_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(InputError, match="expected a run folder"):
            summarize(path)


def test_several_samples_of_a_problem(tmp_path: Path) -> None:
    """Of three problems one is solved by the vote, one by luck, one never; a first attempt that was cancelled does not count."""
    said = {1: ["5", "5", "7", "5"], 2: ["6", "8", "8", "9"], 3: ["1", "2", "3", "1"]}
    right = {1: "5", 2: "6", 3: "0"}
    rows = [chain(2, 0, 1, "cancelled", sample_index=1, answer=None)] + [
        chain(row, 0, 5, "answer_boxed", sample_index=k, answer=answers[k], correct=answers[k] == right[row])
        for k in (3, 1, 0, 2)
        for row, answers in said.items()
    ]
    found = summarize(write(tmp_path, chains=rows, card={"input": RUN_JSON["input"] | {"samples": 4}}))
    assert (found.samples, found.graded, found.correct, found.accuracy) == (4, 12, 4, pytest.approx(1 / 3))
    assert found.pass_at == {"1": pytest.approx(1 / 3), "2": pytest.approx((1 + 0.5 + 0) / 3), "4": pytest.approx(2 / 3)}
    assert found.majority_accuracy == pytest.approx(1 / 3)
    assert msgspec.json.decode(msgspec.json.encode(found, order="sorted"), type=Summary) == found


def test_a_run_that_goes_on_is_read_to_its_last_row(tmp_path: Path) -> None:
    store = RunStore(write_run_json(tmp_path, sessions=[]))
    for length, total in ((2, 2), (1, 3)):
        store.append("steps", [blank(StepRow, step_tokens=length, decision="accepted")])
        assert summarize(tmp_path).thought_tokens == total
    store.close()
    assert summarize(tmp_path).thought_tokens == 3
