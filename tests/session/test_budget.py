"""Budgets of simulated runs: when they end, what is left, that a resumed run says what an unbroken one says."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import pipeline
from pipeline.analysis.headline.lines import headline
from pipeline.analysis.summary import summarize
from pipeline.errors import BudgetUsedUp, Unfinished, UsageError
from pipeline.session.options import RunOptions, resume_options
from pipeline.session.run import SessionResult, run
from tests.support.fated_replicas import BRIEF, on_replicas, options_of
from tests.support.paths import ROOT
from tests.support.runs import rows, said, solve_short, write_problems

PRICED = ("engines.target.price.hour=36", "engines.draft.price.output=100")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SessionResult:
    return solve(tmp_path_factory.mktemp("whole"))


def solve(folder: Path, name: str = "run", **options: Any) -> SessionResult:
    problems = write_problems(folder, 24)
    return solve_short(folder, name, input=problems, batch_size=4, **options)


def changed(result: SessionResult, **options: Any) -> RunOptions:
    assert result.folder is not None
    return structs.replace(resume_options(result.folder), **options)


def go_on(result: SessionResult, **options: Any) -> SessionResult:
    return run(changed(result, **options))


def spent_of(result: SessionResult) -> Any:
    assert result.run.budget is not None
    return result.run.budget.spent


def check_ends(result: SessionResult, whole: SessionResult, option: str) -> None:
    """The run ended within its budget with a code of its own, and goes on to the same answers."""
    assert (result.exit_code, result.run.status) == (4, "interrupted")
    assert isinstance(result.error, BudgetUsedUp)
    assert option in str(result.error)
    assert 0 < result.done < whole.done
    again = go_on(result)
    assert (again.exit_code, again.done, len(again.run.sessions)) == (4, result.done, 1), "nothing was opened"
    resumed = go_on(result, **{option[2:].replace("-", "_"): "none"})
    assert resumed.exit_code == 0
    assert said(resumed) == said(whole)


def test_calls_in_flight_end_when_the_tokens_are_used_up(tmp_path: Path, whole: SessionResult) -> None:
    result = solve(tmp_path, max_tokens="3k")
    spent = spent_of(result)
    assert 3000 <= spent.tokens == sum(row["output_tokens"] for row in rows(result, "calls"))
    assert all(row["error_type"] is None for row in rows(result, "calls")), "nothing that was sampled is lost"
    assert spent.tokens - 3000 <= 4 * max(row["output_tokens"] for row in rows(result, "calls"))
    check_ends(result, whole, "--max-tokens")


def test_time_is_simulated_and_kept_to_the_moment(tmp_path: Path, whole: SessionResult) -> None:
    half = (whole.run.wall_time_s or 0) / 2
    result = solve(tmp_path, max_time=f"{half:.3f}s")
    assert result.run.wall_time_s == pytest.approx(half, abs=1e-2)
    check_ends(result, whole, "--max-time")


def test_hours_and_tokens_cost(tmp_path: Path, whole: SessionResult) -> None:
    priced = solve(tmp_path, "all", settings=PRICED, max_cost="1000")
    assert (priced.exit_code, said(priced)) == (0, said(whole))
    by_hand = 0.01 * (priced.run.wall_time_s or 0) + sum(r["output_tokens"] for r in rows(priced, "calls") if r["engine"] == "draft") / 1e4
    assert spent_of(priced).cost == pytest.approx(by_hand)
    assert priced.folder is not None
    assert summarize(priced.folder).cost == pytest.approx(by_hand)
    result = solve(tmp_path, "some", settings=PRICED, max_cost=f"{by_hand / 2:.4f}")
    assert spent_of(result).cost == pytest.approx(by_hand / 2, rel=0.2)
    check_ends(result, whole, "--max-cost")


def test_no_chain_begins_for_which_there_is_no_room(tmp_path: Path, whole: SessionResult) -> None:
    total = sum(row["output_tokens"] for row in rows(whole, "calls"))
    result = solve(tmp_path, max_tokens=str(total // 2))
    begun = {row["chain_id"] for row in rows(result, "calls")}
    assert len(begun) - result.done <= 1, "of four that were live all but one came to their ends"
    assert result.folder is not None
    found = summarize(result.folder)
    assert found.left is not None
    assert (found.left.chains, found.left.begun) == (24 - result.done, len(begun) - result.done)
    shown = headline(found)
    assert shown.head.startswith("budget used up: ")
    assert f"{24 - result.done}" in [row.figure for row in shown.rows if row.name == "left"]


def test_what_is_left_is_estimated_from_the_chains_so_far(tmp_path: Path, whole: SessionResult) -> None:
    result, total = solve(tmp_path, max_tokens="6k"), sum(row["output_tokens"] for row in rows(whole, "calls"))
    assert result.folder is not None
    left = summarize(result.folder).left
    assert left is not None
    assert left.tokens is not None
    assert left.tokens + spent_of(result).tokens == pytest.approx(total, rel=0.3)


@pytest.mark.slow
def test_replicas_end_when_the_budget_is_used_up(tmp_path: Path) -> None:
    problems = write_problems(tmp_path, 24)
    whole = on_replicas(options_of(tmp_path, "whole", problems, replicas=2, batch_size=2))
    total = sum(row["output_tokens"] for row in rows(whole, "calls"))
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=2, batch_size=2, max_tokens=str(total // 2)))
    assert (result.exit_code, result.run.status) == (4, "interrupted")
    assert total // 2 <= spent_of(result).tokens < total
    resumed = on_replicas(changed(result, max_tokens="none"))
    assert (resumed.exit_code, said(resumed)) == (0, said(whole))


@pytest.mark.slow
def test_no_chain_begins_on_a_replica_for_which_there_is_no_room(tmp_path: Path) -> None:
    settings = ("engines.*.text.steps_mean=20",)
    options = options_of(tmp_path, "run", write_problems(tmp_path, 96), replicas=2, batch_size=8, settings=settings, max_tokens="150k")
    result = on_replicas(options)
    assert result.exit_code == 4
    begun = {row["chain_id"] for row in rows(result, "calls")}
    assert len(begun) - result.done <= 8, "of sixteen that were live half came to their ends"


@pytest.mark.slow
def test_every_session_costs_the_hours_of_its_own_replicas(tmp_path: Path) -> None:
    problems = write_problems(tmp_path, 24)
    options = options_of(tmp_path, "run", problems, replicas=3, settings=(*BRIEF, "engines.target.price.hour=36"), max_cost="0.05")
    result = on_replicas(options)
    first_s = result.run.wall_time_s or 0.0
    assert (result.exit_code, spent_of(result).cost) == (4, pytest.approx(3 * 0.01 * first_s)), "without the time in which replicas end"
    resumed = run(changed(result, replicas=1, max_cost="1000"))
    by_hand = 0.01 * (3 * first_s + (resumed.run.sessions[-1].wall_time_s or 0.0))
    assert (resumed.exit_code, spent_of(resumed).cost) == (0, pytest.approx(by_hand))
    assert resumed.folder is not None
    assert summarize(resumed.folder).cost == pytest.approx(by_hand)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_time": "0s"}, "--max-time 0s: expected a time above 0 with its unit, such as 90s"),
        ({"max_time": "90"}, "--max-time 90: expected a time above 0 with its unit"),
        ({"max_time": "-3h"}, "--max-time -3h: expected a time above 0"),
        ({"max_time": "2w"}, "--max-time 2w: expected a time above 0"),
        ({"max_tokens": "0"}, "--max-tokens 0: expected a number of tokens above 0"),
        ({"max_tokens": "3T"}, "--max-tokens 3T: expected a number of tokens above 0"),
        ({"max_cost": "-1"}, "--max-cost -1: expected an amount above 0"),
        ({"max_cost": "5$"}, "--max-cost 5$: expected an amount above 0"),
        ({"max_cost": "5"}, "--max-cost 5: no engine has a price; add `price: {input: 0.2, output: 0.8}`"),
    ],
)
def test_a_budget_that_means_nothing_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        solve(tmp_path, **options)
    assert str(refused.value).startswith(message)
    assert not (tmp_path / "run").exists()


def test_in_python_a_number_has_the_unit_of_its_name(tmp_path: Path) -> None:
    graph, problems = ROOT / "graphs/speccot.yaml", write_problems(tmp_path, 24)
    with pytest.raises(Unfinished) as ended:
        pipeline.solve(graph, problems, engines="sim-2xh100", batch_size=4, max_time=9, max_tokens=10**9)
    assert isinstance(ended.value.error, BudgetUsedUp)
    assert ended.value.result.run.wall_time_s == pytest.approx(9, abs=0.01)
    with pytest.raises(UsageError, match="max_tokens 0: expected a number"):
        pipeline.solve(graph, problems, engines="sim-2xh100", max_tokens=0)
