"""Whole runs on simulated engines: what ends up in the run folder, whatever the schedule, the batch size and the admission."""

import json
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.analysis.summary import summarize
from pipeline.options import RunOptions
from pipeline.run.run import SessionResult, run
from pipeline.store.rows import CallRow, ChainRow, StepRow
from tests.run.conftest import Recorded
from tests.support.echo import Echo
from tests.support.paths import ROOT, SIM
from tests.support.runs import rows, said, solve, solve_short, write_problems


def total(result: SessionResult, column: str, **where: str | None) -> int:
    """The sum of a column of `calls`, of the rows with these values."""
    return sum(row[column] for row in rows(result, "calls") if all(row[name] == value for name, value in where.items()))


def test_a_run_leaves_three_tables_and_its_card(recorded: Recorded) -> None:
    result = recorded(samples=2)
    for table, row in (("chains", ChainRow), ("steps", StepRow), ("calls", CallRow)):
        assert pq.read_table(result.folder / table).column_names == list(row.__struct_fields__)
    card = json.loads((result.folder / "run.json").read_text())
    assert (card["status"], card["totals"]["chains_done"], card["virtual_time"], card["input"]["rows"]) == ("finished", 24, True, 12)
    [(chains, right)] = duckdb.sql(f"select count(*), count(*) filter (correct) from '{result.folder}/chains/*.parquet'").fetchall()
    assert chains == 24
    assert right == summarize(result.folder).correct > 12


def test_token_level_speculation_changes_times_and_no_answer(recorded: Recorded) -> None:
    plain = recorded("specreason")
    faster = recorded(
        "specreason", engines=SIM.with_name("sim-2xh100-decode.yaml"), settings=("engines.target.speculative.acceptance=0.9",)
    )
    assert said(plain) == said(faster)
    before, after = summarize(plain.folder), summarize(faster.folder)
    assert (after.wall_time_s or 0) < (before.wall_time_s or 0)
    own, counted = after.engines["target"], faster.run.engine_statistics["target"].speculation
    assert counted is not None
    assert (after.engines["draft"].speculated_tokens, own.speculated_tokens) == (None, 5 * counted.drafts)
    assert 0 < (own.accepted_speculated_tokens or 0) < (own.speculated_tokens or 0)


def test_the_ledger_of_a_chain_adds_up(recorded: Recorded) -> None:
    result = recorded(samples=2)
    calls, steps = rows(result, "calls"), rows(result, "steps")
    for chain in rows(result, "chains"):
        own = [call for call in calls if call["chain_id"] == chain["chain_id"]]
        committed = [step for step in steps if step["chain_id"] == chain["chain_id"]]
        assert chain["calls"] == len(own) == max(call["call_index"] for call in own) + 1
        spent = dict(zip(chain["engines"], chain["output_tokens"], strict=True))
        for role in ("draft", "target"):
            assert spent[role] == sum(call["output_tokens"] for call in own if call["engine"] == role)
        assert chain["thought_tokens"] == sum(len(step["step_token_ids"]) for step in committed)
        assert [step["step_index"] for step in committed] == list(range(len(committed)))
        assert committed[0]["decision"] == "guidance"
        accepted = sum(len(step["step_token_ids"]) for step in committed if step["decision"] == "accepted")
        assert spent["draft"] == accepted + chain["wasted_draft_tokens"]
        assert chain["wait_time_s"] <= chain["chain_time_s"] + 1e-9


def test_a_verdict_is_recorded_with_probabilities_and_mass(recorded: Recorded) -> None:
    verified = [row for row in rows(recorded(samples=2), "steps") if row["verify_kind"]]
    assert verified
    for row in verified:
        assert len(row["score_probs"]) == row["num_distinct_candidates"] + 1
        assert sum(row["score_probs"]) == pytest.approx(1)
        assert 0 < row["score_mass"] <= 1
        assert (row["chosen_candidate"] is not None) == (row["decision"] == "accepted")
        if row["chosen_candidate"] is not None:
            assert row["candidate_texts"][row["chosen_candidate"]] == row["step_text"]


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["speccot", "specreason"])
def test_schedules_and_batch_sizes_change_no_answer(recorded: Recorded, graph: str) -> None:
    base = said(recorded(graph, samples=2))
    assert len(base) == 24
    for schedule, batch_size in (("pipelined", 1), ("pipelined", 7), ("lockstep", 64), ("lockstep", 5), ("sequential", 64)):
        assert said(recorded(graph, schedule=schedule, batch_size=batch_size, samples=2)) == base


def test_a_bad_row_is_a_failed_chain_and_the_others_go_on(tmp_path: Path) -> None:
    problems = write_problems(tmp_path, 3, (b"{oops", b'{"problem_id": "null", "problem": null}', b'{"problem_id": "e", "problem": " "}'))
    result = solve_short(tmp_path, input=problems)
    assert result.exit_code == 3
    failed = sorted((row for row in rows(result, "chains") if row["error_type"]), key=lambda row: row["input_row"])
    assert [(row["input_row"], row["error_type"], row["stop_reason"]) for row in failed] == [(i, "BadRow", "error") for i in (4, 5, 6)]
    assert "row 4: is not JSON" in failed[0]["error_message"]
    assert sum(row["error_type"] is None for row in rows(result, "chains")) == 3


REJECTED = """
name: rejected
engines: none
stages:
  draft: {kind: draft, engine: draft, unit: thought, candidates: 3, max_tokens: 2000}
  verify: {kind: choose, engine: target, unit: thought, after: draft}
  answer: {kind: answer, engine: target, after: verify}
"""


@pytest.mark.parametrize(
    ("graph", "settings"),
    [("speccot", ()), ("speccot", ("engines.*.max_model_len=400",)), ("scot", ()), ("", ("engines.*.text.step_accuracy=0.2",))],
)
def test_every_drafted_token_is_counted_and_those_of_no_step_are_unused(tmp_path: Path, graph: str, settings: tuple[str, ...]) -> None:
    (tmp_path / "rejected.yaml").write_text(REJECTED)
    path = ROOT / f"graphs/{graph}.yaml" if graph else tmp_path / "rejected.yaml"
    result = run(RunOptions(graph=path, engines=SIM, input=(str(write_problems(tmp_path)),), output=tmp_path / "run", settings=settings))
    found = summarize(result.folder)
    assert found.draft_tokens == total(result, "output_tokens", purpose="draft") > 0
    assert found.wasted_draft_tokens == sum(row["wasted_draft_tokens"] for row in rows(result, "chains"))


def test_a_step_that_was_cut_at_its_limit_is_marked_and_no_other(recorded: Recorded) -> None:
    steps = [row for row in rows(recorded(settings=("step_tokens=30",)), "steps") if row["decision"] != "guidance"]
    cut = [row for row in steps if not row["step_text"].endswith(("\n\n", "</think>"))]
    assert 0 < len(cut) < len(steps)
    assert [row for row in steps if row["cut"]] == cut
    assert all(len(row["step_token_ids"]) == 30 for row in cut)


@pytest.mark.parametrize("graph", ["target-steps", "target", "specreason", "speccot"])
def test_a_thought_that_fills_the_context_is_answered_and_nothing_is_drafted_in_vain(recorded: Recorded, graph: str) -> None:
    result = recorded(graph, settings=("engines.*.max_model_len=360", "engines.*.text.steps_mean=30"))
    calls, full = rows(result, "calls"), [row for row in rows(result, "chains") if row["stop_reason"] == "context_length"]
    assert graph == "target" or len(full) > 9
    assert all(row["answer"] for row in rows(result, "chains"))
    assert {row["error_type"] for row in calls} == {None}
    assert all(row["thought_tokens"] > 200 for row in full)  # 16 to 20 tokens of problem and 64 for the answer


@pytest.mark.slow
def test_a_simulated_run_says_which_calls_have_the_adapter_and_shares_no_cache(recorded: Recorded) -> None:
    listed = "engines.target.adapters=[selection]"
    plain, adapted = recorded("specreason", settings=(listed,)), recorded("specreason", settings=(listed, "adapter=selection"))
    verified = [row for row in rows(adapted, "calls") if row["adapter"]]
    assert {(row["stage"], row["adapter"]) for row in verified} == {("verify", "selection")}
    assert len(verified) == sum(row["stage"] == "verify" for row in rows(adapted, "calls"))
    assert said(plain) == said(adapted), "a simulated adapter changes no text"
    column = "cached_input_tokens"
    mine, base = (total(adapted, column, engine="target", adapter=adapter) for adapter in ("selection", None))
    assert total(plain, column, engine="target") > mine + base > 0


def test_calls_of_whole_thoughts_are_as_many_as_the_cache_holds(recorded: Recorded) -> None:
    small = ("engines.target.kv_cache_tokens=1200", "token_budget=1000", "engines.*.text.steps_mean=12")
    cache, batch = (recorded("target", settings=small, samples=2, admission=name) for name in ("cache", "batch"))
    assert said(cache) == said(batch)
    queued = [max(row["queue_time_s"] for row in rows(each, "calls")) for each in (cache, batch)]
    assert queued[0] < queued[1] / 2
    assert cache.run.sessions[-1].wall_time_s < 1.08 * batch.run.sessions[-1].wall_time_s


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["pipelined", "lockstep"])
def test_answers_do_not_depend_on_admission_and_less_is_computed_again(tmp_path: Path, schedule: str) -> None:
    given = {"settings": ("engines.target.kv_cache_tokens=3000",), "samples": 2, "schedule": schedule}
    cache, batch = (solve(tmp_path, name, "specreason", admission=name, **given) for name in ("cache", "batch"))
    assert said(cache) == said(batch)
    computed = [
        total(each, "input_tokens", engine="target") - total(each, "cached_input_tokens", engine="target") for each in (cache, batch)
    ]
    assert computed[0] < computed[1] / 2
    assert batch.run.totals.pauses is None
    assert cache.run.totals.pauses


def test_where_all_fit_nobody_pauses_and_times_are_those_of_the_batch_alone(recorded: Recorded) -> None:
    cache, batch = (recorded("specreason", limit=4, admission=name) for name in ("cache", "batch"))
    assert cache.run.totals.pauses == 0
    times = [sorted((row["request_id"], row["e2e_latency_s"]) for row in rows(each, "calls")) for each in (cache, batch)]
    assert times[0] == times[1]


def test_an_engine_that_does_not_state_its_cache_is_named() -> None:
    result = pipeline.solve("target-steps", ["1 + 1?"], engines={"target": Echo()}, trace=True)
    assert result.notices == ("engine 'target' does not report the size of its cache: chains will not pause to make room in it",)
    assert result.run.totals.pauses is None
