"""Admission by cache and the order of chains in whole runs on simulated engines: what changes is when, never what is said."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.analysis.ledger import ledger
from pipeline.analysis.summary import summarize
from pipeline.engine import Completion, Request
from pipeline.engines.registry import open_engines
from pipeline.engines.sim.engine import SimEngine
from pipeline.errors import UsageError
from pipeline.session.loop import in_loop
from pipeline.session.observer import Observer
from pipeline.session.options import RunOptions
from pipeline.session.prepare import load_plan, prepared
from pipeline.session.run import SessionResult, solve_on
from tests.support.paths import ROOT, SIM
from tests.support.runs import rows, said, solve, write_problems

SMALL = ("engines.target.kv_cache_tokens=3000",)


def recomputed(result: SessionResult) -> int:
    assert result.folder is not None
    return ledger(result.folder).engines["target"].input["recomputed"]


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["pipelined", "lockstep"])
def test_answers_do_not_depend_on_admission_and_less_is_computed_again(tmp_path: Path, schedule: str) -> None:
    found = {
        name: solve(tmp_path, name, "specreason", settings=SMALL, samples=2, admission=name, schedule=schedule)
        for name in ("cache", "batch")
    }
    assert said(found["cache"]) == said(found["batch"])
    assert recomputed(found["cache"]) < recomputed(found["batch"]) / 4
    cache, batch = (summarize(found[name].folder) for name in ("cache", "batch"))
    assert (cache.admission, batch.admission, batch.pauses) == ("cache", "batch", None)
    assert cache.pauses
    assert batch.engines["target"].recomputed_input_tokens == recomputed(found["batch"])
    assert cache.engines["draft"].recomputed_input_tokens == 0


@pytest.mark.slow
def test_room_is_left_for_steps_that_the_target_has_not_read(tmp_path: Path) -> None:
    settings = (*SMALL, "sure=-0.22")
    found = {name: solve(tmp_path, name, "gated", settings=settings, samples=2, admission=name) for name in ("cache", "batch")}
    assert said(found["cache"]) == said(found["batch"])
    assert found["cache"].run.totals.decisions["unverified"]
    assert recomputed(found["cache"]) < recomputed(found["batch"]) / 4


@pytest.mark.slow
def test_where_all_fit_nobody_pauses_and_times_are_those_of_the_batch_alone(tmp_path: Path) -> None:
    cache, batch = (solve(tmp_path, name, "specreason", limit=4, admission=name) for name in ("cache", "batch"))
    assert cache.run.totals.pauses == 0
    times = [sorted((row["request_id"], row["e2e_latency_s"]) for row in rows(each, "calls")) for each in (cache, batch)]
    assert times[0] == times[1]


class Silent(SimEngine):
    """A simulated engine that states nothing about its cache, and not what was in it."""

    def __init__(self, engine: SimEngine) -> None:
        self.__dict__.update(engine.__dict__)
        self.facts = {"answers": "simulated"}

    async def generate(self, request: Request) -> Completion:
        found = await super().generate(request)
        return structs.replace(found, usage=structs.replace(found.usage, cached_input_tokens=None))


@pytest.mark.slow
def test_an_engine_that_does_not_state_its_cache_is_named(tmp_path: Path) -> None:
    path, told = write_problems(tmp_path, 2), list[str]()
    options = RunOptions(graph=ROOT / "graphs/specreason.yaml", engines=SIM, input=path, output=tmp_path / "run")

    async def carry_out() -> SessionResult:
        plan = load_plan(options.graph, options.engines, options.settings)
        with prepared(options, plan) as checked:
            async with open_engines(plan.engines) as engines:
                silent = {role: Silent(engine) for role, engine in engines.items() if isinstance(engine, SimEngine)}
                return await solve_on(silent, checked, Observer(tell=told.append))

    result = in_loop(carry_out, virtual=True)
    assert told == [
        f"engine {role!r} does not report the size of its cache: chains will not pause to make room in it" for role in ("draft", "target")
    ]
    assert (result.exit_code, result.run.totals.pauses) == (0, None)
    assert {row["recomputed_input_tokens"] for row in rows(result, "calls")} == {None}


@pytest.mark.slow
def test_the_order_changes_no_answer_and_says_how_good_it_was(tmp_path: Path) -> None:
    plain = solve(tmp_path, "plain", "specreason", batch_size=2, samples=2)
    by_run = solve(tmp_path, "by-run", "specreason", batch_size=1, samples=2, order=f"longest:{tmp_path / 'plain'}")
    by_text = solve(tmp_path, "by-text", "specreason", batch_size=2, samples=2, order="longest")
    assert said(plain) == said(by_run) == said(by_text)
    assert {row["expected_length"] for row in rows(plain, "chains")} == {None}
    lengths: dict[str, list[int]] = {}
    for row in rows(plain, "chains"):
        lengths.setdefault(row["problem_id"], []).append(row["thought_tokens"])
    firsts = sorted((row for row in rows(by_run, "chains") if not row["sample_index"]), key=lambda row: row["start_unix_ns"])
    assert [row["expected_length"] for row in firsts] == sorted((sum(each) / 2 for each in lengths.values()), reverse=True)
    summary = summarize(by_run.folder)
    assert summary.order == f"longest:{tmp_path / 'plain'}"
    assert summary.order_correlation > 0.8
    assert summarize(plain.folder).order_correlation is None
    keys = [{row["chain_id"]: row["request_id"] for row in rows(each, "calls")} for each in (plain, by_run)]
    assert keys[0] == keys[1]


@pytest.mark.slow
def test_a_run_in_another_order_is_resumed_to_the_same_answers(tmp_path: Path, faulty: Path) -> None:
    whole = solve(tmp_path, "whole", "specreason", batch_size=2)
    dying = ("engines.target.faults.dies_after_calls=60", "engines.target.max_restarts=0")
    assert solve(tmp_path, "cut", "specreason", batch_size=2, order="longest", engines=faulty, settings=dying).exit_code == 1
    again: dict[str, Any] = {"batch_size": 2, "resume": True, "allow_drift": ("engines",)}
    with pytest.raises(UsageError, match="order is input, was longest; add --allow-drift order"):
        solve(tmp_path, "cut", "specreason", **again)
    resumed = solve(tmp_path, "cut", "specreason", order="longest", **again)
    assert (resumed.exit_code, resumed.done) == (0, 12)
    assert said(resumed) == said(whole)


@pytest.mark.parametrize("order", ["shortest", "longest:", "input:runs/x"])
def test_what_is_no_order_is_refused(tmp_path: Path, order: str) -> None:
    with pytest.raises(UsageError, match=f"--order {order}: expected input, longest, or longest:RUN"):
        solve(tmp_path, order=order)


def test_a_run_without_chains_gives_no_order(tmp_path: Path) -> None:
    (tmp_path / "empty/chains").mkdir(parents=True)
    with pytest.raises(UsageError, match="there is no finished chain in"):
        solve(tmp_path, order=f"longest:{tmp_path / 'empty'}")
