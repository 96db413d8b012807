"""Thoughts that end where their answer stands, in whole simulated runs: loops, the target alone in pieces, resumed and replayed."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.options import RunOptions
from pipeline.run.prepare import resume_options
from pipeline.run.run import run
from tests.support.hanging_together import check_hangs_together
from tests.support.killed import cut
from tests.support.paths import ROOT
from tests.support.runs import rows, said, solve, write_problems

CONFIDENT = "answer_confident=0.95"


def tokens(result: Any) -> int:
    return sum(row["thought_tokens"] for row in rows(result, "chains"))


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["specreason", "target"])
def test_thoughts_end_earlier_and_the_chains_say_why(tmp_path: Path, graph: str) -> None:
    plain, early = solve(tmp_path, "plain", graph), solve(tmp_path, "early", graph, settings=(CONFIDENT,))
    reasons = {row["stop_reason"] for row in rows(early, "chains")}
    assert reasons == {"answer_confident", "thought_closed"}
    assert tokens(early) < tokens(plain)
    assert all(row["answer_text"] for row in rows(early, "chains"))
    trials = [row for row in rows(early, "calls") if row["stage"] == "trial"]
    assert {(row["kind"], row["purpose"], row["engine"]) for row in trials} == {("trial", "trial", "target")}
    ended = {row["chain_id"]: row["stop_reason"] == "answer_confident" for row in rows(early, "chains")}
    for chain, by_confidence in ended.items():
        last = max((row for row in trials if row["chain_id"] == chain), key=lambda row: row["call_index"], default=None)
        assert (last is not None and last["logprob_mean"][0] >= -0.0513) == by_confidence
    assert not any(row["purpose"] == "trial" for row in rows(plain, "calls"))
    check_hangs_together(early.folder, 12)


def test_the_target_alone_is_asked_once_unless_it_may_end_early(tmp_path: Path) -> None:
    plain = solve(tmp_path, "plain", "target", input=write_problems(tmp_path, 3))
    assert [row["stage"] for row in rows(plain, "calls")] == ["response"] * 3
    stable = solve(tmp_path, "stable", "target", input=tmp_path / "problems.jsonl", settings=("answer_stable=2", "every_tokens=50"))
    calls = sorted((row["chain_id"], row["call_index"], row["stage"], row["output_tokens"]) for row in rows(stable, "calls"))
    pieces = [call for call in calls if call[2] == "response"]
    assert max(sampled for *_, sampled in pieces) == 50
    assert len(pieces) > 6
    assert all(not row["logprob_mean"] for row in rows(stable, "calls")), "nobody asked how sure it is"
    for at, (chain, index, stage, _) in enumerate(calls):
        if stage == "trial":
            assert calls[at - 1][:3] == (chain, index - 1, "response"), "a trial follows a piece"


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["specreason", "target"])
def test_a_killed_run_goes_on_as_it_would_have_and_a_replay_says_the_same(tmp_path: Path, graph: str) -> None:
    whole = solve(tmp_path, "whole", graph, settings=(CONFIDENT,), batch_size=4)
    cut(whole.folder, tmp_path / "killed", 0.5)
    resumed = run(resume_options(tmp_path / "killed"))
    assert (resumed.exit_code, said(resumed)) == (0, said(whole))
    check_hangs_together(resumed.folder, 12)
    options = {"graph": ROOT / f"graphs/{graph}.yaml", "input": (str(tmp_path / "problems.jsonl"),), "batch_size": 4}
    replayed = run(RunOptions(**options, engines=Path(f"replay:{whole.folder}"), settings=(CONFIDENT,), output=tmp_path / "replayed"))
    assert (replayed.exit_code, said(replayed)) == (0, said(whole))
