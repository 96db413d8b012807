"""Admission by cache and the order of chains in whole runs on simulated engines: what changes is when, never what is said."""

from pathlib import Path

import pytest
from msgspec import structs

from pipeline.analysis.summary import summarize
from pipeline.engine import Completion, Request
from pipeline.engines.registry import open_engines
from pipeline.engines.sim.engine import SimEngine
from pipeline.options import RunOptions
from pipeline.run.loop import in_loop
from pipeline.run.observer import Observer
from pipeline.run.prepare import load_plan, prepare
from pipeline.run.run import SessionResult
from pipeline.run.run import solve as solve_run
from tests.support.paths import ROOT, SIM
from tests.support.runs import rows, said, solve, write_problems

SMALL = ("engines.target.kv_cache_tokens=3000",)


def recomputed(result: SessionResult) -> int:
    return sum(row["recomputed_input_tokens"] for row in rows(result, "calls") if row["engine"] == "target")


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
    assert batch.pauses is None
    assert cache.pauses
    assert {row["recomputed_input_tokens"] for row in rows(found["cache"], "calls") if row["engine"] == "draft"} == {0}


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
    options = RunOptions(graph=ROOT / "graphs/specreason.yaml", engines=SIM, input=(str(path),), output=tmp_path / "run")

    async def carry_out() -> SessionResult:
        plan = load_plan(options.graph, options.engines, options.settings)
        with prepare(options, plan) as checked:
            async with open_engines(plan.engines) as engines:
                silent = {role: Silent(engine) for role, engine in engines.items() if isinstance(engine, SimEngine)}
                return await solve_run(checked, Observer(tell=told.append), engines=silent)

    result = in_loop(carry_out, virtual=True)
    assert told == [
        f"engine {role!r} does not report the size of its cache: chains will not pause to make room in it" for role in ("draft", "target")
    ]
    assert (result.exit_code, result.run.totals.pauses) == (0, None)
    assert {row["recomputed_input_tokens"] for row in rows(result, "calls")} == {None}
