"""Runs in which one stage has an adapter: exactly its calls are computed with it, and the trace says so."""

from pathlib import Path

import pytest

from pipeline.options import RunOptions
from pipeline.run.run import SessionResult, run
from tests.support.paths import ROOT
from tests.support.runs import rows, solve

pytestmark = pytest.mark.slow  # whole runs

LISTED = "engines.target.adapters=[selection]"
"""No step reaches the threshold, so that every stage of SpecReason is asked whatever the scores are."""


def test_a_simulated_run_says_which_calls_have_the_adapter_and_shares_no_cache(tmp_path: Path) -> None:
    plain = solve(tmp_path, "plain", "specreason", settings=(LISTED,))
    adapted = solve(tmp_path, "adapted", "specreason", settings=(LISTED, "adapter=selection"))
    verified = [row for row in rows(adapted, "calls") if row["adapter"]]
    assert {(row["stage"], row["adapter"]) for row in verified} == {("verify", "selection")}
    assert len(verified) == sum(row["stage"] == "verify" for row in rows(adapted, "calls"))
    texts = [sorted((row["chain_id"], row["step_index"], row["step_text"]) for row in rows(each, "steps")) for each in (plain, adapted)]
    assert texts[0] == texts[1], "a simulated adapter changes no text"

    def cached(result: SessionResult, adapter: str | None) -> int:
        return sum(row["cached_input_tokens"] for row in rows(result, "calls") if row["engine"] == "target" and row["adapter"] == adapter)

    assert cached(plain, None) > cached(adapted, None) + cached(adapted, "selection") > 0
    assert sum(row["recomputed_input_tokens"] for row in rows(adapted, "calls")) == 0, "nothing was evicted"


def test_a_replay_answers_what_was_asked_of_the_same_adapter(tmp_path: Path) -> None:
    recorded = solve(tmp_path, settings=(LISTED, "adapter=selection"))

    def replayed(adapter: str) -> SessionResult:
        given = RunOptions(
            graph=ROOT / "graphs/speccot.yaml",
            engines=Path(f"replay:{recorded.folder}"),
            input=(str(tmp_path / "problems.jsonl"),),
            output=tmp_path / f"replay-{adapter}",
            settings=(f"adapter={adapter}",),
        )
        return run(given)

    same, other = replayed("selection"), replayed("null")
    assert (same.done, same.failed) == (recorded.done, 0)
    assert {row["adapter"] for row in rows(same, "calls")} == {None, "selection"}
    assert other.done == 0
    assert {row["error_stage"] for row in rows(other, "chains")} == {"verify"}
    assert "another wording or adapter" in rows(other, "chains")[0]["error_message"]
