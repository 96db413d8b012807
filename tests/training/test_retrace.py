"""A recorded run taken through its plan again: the same prompts, steps and candidates, from the recorded calls alone."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.store.store import write_part
from pipeline.training import retrace
from pipeline.training.retrace import Retracer
from tests.support.paths import ROOT
from tests.support.runs import rows, solve, write_problems

pytestmark = pytest.mark.slow  # whole runs

RUNS: dict[str, dict[str, Any]] = {
    **{graph: {"graph": graph} for graph in ("speccot", "specreason", "scot", "best-of-n", "guided-draft", "gated")},
    "three models in turn": {"graph": "rsd", "engines": ROOT / "graphs/engines/sim-4xh100-rsd.yaml"},
    **{f"{graph}, ended early": {"graph": graph, "settings": ("answer_confident=0.95",)} for graph in ("specreason", "target-steps")},
}


@pytest.mark.parametrize("run", RUNS)
def test_every_step_comes_out_as_it_was_recorded(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the input, from windows of chains that are smaller than the run."""
    monkeypatch.setattr(retrace, "WINDOW", 4)
    result = solve(tmp_path, input=write_problems(tmp_path, 3), samples=2, **RUNS[run])
    retracer = Retracer(result.folder)
    found = {each.chain.chain_id: each for each in retracer.chains()}
    assert [*found] == [f"p{number}#{sample}" for number in range(3) for sample in range(2)]
    assert (retracer.lost, retracer.unfinished) == (0, 0)
    digests = {row["request_id"]: row["prompt_digest"] for row in rows(result, "calls")}
    asked = [asked.request for chain in found.values() for _, requests in chain.steps for asked in requests]
    assert all(request.digest() == digests[request.request_id] for request in asked)
    said = ("decision", "step_text", "candidate_texts")
    recorded = {(row["chain_id"], row["step_index"]): tuple(row[name] for name in said) for row in rows(result, "steps")}
    assert {
        (name, step.index): (step.decision, step.span.text, [each.text for each in step.candidates])
        for name, chain in found.items()
        for step, _ in chain.steps
    } == recorded
    graded = {row["chain_id"]: (row["correct"], row["answer"]) for row in rows(result, "chains")}
    assert {name: (each.row.correct, each.chain.stated_answer()) for name, each in found.items()} == graded


def test_a_chain_whose_calls_are_gone_is_counted(tmp_path: Path) -> None:
    folder = solve(tmp_path, input=write_problems(tmp_path, 5)).folder
    [part] = (folder / "calls").glob("*.parquet")
    calls = pq.read_table(part)
    gone = [row["chain_id"] == "p3#0" and row["purpose"] == "judge" for row in calls.to_pylist()]
    write_part(part, calls.filter([not each for each in gone]))
    retracer = Retracer(folder)
    assert "p3#0" not in {chain.chain.chain_id for chain in retracer.chains()}
    assert retracer.lost == 1
