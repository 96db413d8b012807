"""Trial answers of a recorded run: how sure each was, and that they are graded as answers are."""

import math
from pathlib import Path

import msgspec
import pytest

from pipeline.engines.sim.text import sim_answer
from pipeline.sweep.trials import trial_answers
from tests.support.runs import rows, solve_short

pytestmark = pytest.mark.slow  # whole runs


def test_trial_answers_have_a_grade_and_as_much_confidence_as_the_run_saw(tmp_path: Path) -> None:
    texts = [f"Problem number {number}?" for number in range(12)]
    answers = [*map(sim_answer, texts[:10]), None, "nobody knows"]
    problems = tmp_path / "problems.jsonl"
    lines = [msgspec.json.encode({"problem": text, "answer": answer}) for text, answer in zip(texts, answers, strict=True)]
    problems.write_bytes(b"\n".join(lines))
    settings = ("engines.*.text.steps_mean=4", "answer_confident=0.8")
    result = solve_short(tmp_path, "run", "specreason", settings, batch_size=4, input=problems)
    found = trial_answers(result.folder)
    lasts = {row["chain_id"]: row["step_index"] for row in rows(result, "steps")}  # in their order
    for row in rows(result, "chains"):
        chain, last = row["chain_id"], lasts[row["chain_id"]]
        if row["stop_reason"] == "answer_confident":
            trial = found[chain, last]
            assert trial.sure >= 0.8, "the thought ended with it"
            assert math.isnan(trial.correct) if row["correct"] is None else trial.correct == row["correct"]
        assert all(each.sure < 0.8 for (whose, step), each in found.items() if whose == chain and step < last), "it went on after these"
    assert {each.correct for each in found.values() if not math.isnan(each.correct)} == {0.0, 1.0}


def test_a_run_that_asks_for_no_answer_has_none(tmp_path: Path) -> None:
    assert trial_answers(solve_short(tmp_path, "run", "specreason", ("engines.*.text.steps_mean=4",), batch_size=4).folder) == {}
