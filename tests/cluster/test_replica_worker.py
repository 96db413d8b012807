"""One replica, told what to do by a test."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import structs

from pipeline.cluster.messages import Assignment, Orders, ReplicaReport
from pipeline.cluster.replica_worker import GATHER_S, MAX_ROWS, REPORT_S, Outbox, ReplicaWorker
from pipeline.data.problems import Problem
from pipeline.runtime.resume_state import ResumedChain
from pipeline.session.prepare import RunSettings, load_plan
from pipeline.store.events import CallRow
from pipeline.system.tasks import background_tasks
from tests.support.fated_replicas import BRIEF, options_of
from tests.support.paths import ROOT, SIM
from tests.support.rows import blank

pytestmark = pytest.mark.anyio
NS = 1_800_000_000 * 10**9


def chain(place: int, **fields: Any) -> Assignment:
    problem = Problem(row=place + 1, problem_id=f"p{place}", problem=f"Problem number {place}?", answer=None)
    return Assignment(item=problem, sample_index=0, order=place, **fields)


def settings_of(*more: str, engines: Path = SIM, **options: Any) -> RunSettings:
    plan = load_plan(ROOT / "graphs/speccot.yaml", engines, (*BRIEF, *more))
    return RunSettings(plan=plan, options=options_of(Path("/"), "run", Path("/problems"), **options), run_id="run", virtual_time=True)


class Driven:
    """A replica and all that it has reported."""

    def __init__(self, settings: RunSettings) -> None:
        self.replica, self.reports = ReplicaWorker(settings), list[ReplicaReport]()

    def order(self, **orders: Any) -> None:
        self.replica.order(Orders(**{"unix_ns": NS} | orders))

    def rows(self, table: str) -> list[Any]:
        return [row for report in self.reports for row in getattr(report, table)]

    async def until(self, condition: Callable[[ReplicaReport], object]) -> ReplicaReport:
        """The first report from now on of which `condition` holds."""
        while True:
            self.reports.append(report := await self.replica.report())
            if condition(report):
                return report
            assert not report.over
            assert anyio.current_time() < 100


@asynccontextmanager
async def driven(*more: str, opened: bool = True, **options: Any) -> AsyncIterator[Driven]:
    found = Driven(settings_of(*more, **options))
    async with background_tasks() as tasks:
        tasks.start_soon(found.replica.serve)
        if opened:
            await found.until(lambda report: report.opened)
        yield found


async def test_it_says_once_that_it_is_open_and_how_much_room_it_has() -> None:
    async with driven(batch_size=16) as it:
        [first] = it.reports
        assert first.opened is not None
        assert (first.opened.facts["target"]["max_model_len"], first.wants, first.live) == (32768, 16 + 2, 0)
        assert anyio.current_time() == pytest.approx(GATHER_S)
        second = await it.until(lambda report: True)
        assert (second.opened, second.wants) == (None, 18)
        assert anyio.current_time() == pytest.approx(REPORT_S + 2 * GATHER_S)


async def test_chains_are_solved_in_their_order_and_dated_by_the_driver() -> None:
    async with driven() as it:
        began = anyio.current_time()
        it.order(chains=(chain(0), chain(1), chain(2)))
        report = await it.until(lambda report: True)
        assert (report.live, report.wants) == (2, 1), "one waits for a place, and one more may wait"
        await it.until(lambda report: len(it.rows("chains")) == 3)
        took = round((anyio.current_time() - began) * 1e9)
        assert {row.stop_reason for row in it.rows("chains")} == {"thought_closed"}
        assert min(row.submit_unix_ns for row in it.rows("calls")) == NS
        assert all(NS <= row.end_unix_ns <= NS + took for row in it.rows("chains"))
        assert [row.chain_id for row in it.rows("calls") if row.call_index == 0] == ["p0#0", "p1#0", "p2#0"]


async def test_orders_of_before_it_is_open_are_carried_out() -> None:
    async with driven(opened=False) as it:
        it.order(chains=(chain(0),), no_more=True)
        await it.until(lambda report: it.rows("chains"))
        assert {row.chain_id for row in it.rows("calls")} == {"p0#0"}


@pytest.mark.parametrize("end", ["drain", "abort"])
async def test_it_can_be_ended_before_it_is_open(end: str) -> None:
    async with driven(opened=False) as it:
        it.order(end=end)
        report = await it.until(lambda report: report.over)
        assert (report.failure, report.wants) == (None, 0)


async def test_a_chain_that_was_begun_elsewhere_goes_on_where_it_was() -> None:
    async with driven() as it:
        it.order(chains=(chain(0),))
        await it.until(lambda report: it.rows("chains"))
        whole, steps = it.rows("chains")[0], it.rows("steps")
    async with driven() as it:
        it.order(chains=(chain(0, resumed=ResumedChain(steps=[steps[0].step_token_ids], attempts=1)),))
        await it.until(lambda report: it.rows("chains"))
        assert [row.step_token_ids for row in it.rows("steps")] == [row.step_token_ids for row in steps[1:]]
        assert it.rows("calls")[0].call_index == 1
        assert it.rows("chains")[0].answer_text == whole.answer_text


@pytest.mark.parametrize(("end", "stopped"), [("drain", ["thought_closed"]), ("abort", ["cancelled"])])
async def test_its_end_lets_chains_in_flight_end_or_cancels_them(end: str, stopped: list[str]) -> None:
    async with driven(batch_size=1) as it:
        it.order(chains=tuple(chain(place) for place in range(4)))
        await it.until(lambda report: it.rows("calls"))
        it.order(end=end)
        last = await it.until(lambda report: report.over)
        assert [row.stop_reason for row in it.rows("chains")] == stopped
        assert (last.wants, last.failure) == (0, None)
        if end == "drain":
            assert last.statistics["target"].requests == sum(row.engine == "target" for row in it.rows("calls"))


async def test_a_dead_engine_is_the_failure_of_the_replica(faulty: Path) -> None:
    async with driven("engines.draft.faults.dies_after_calls=2", "engines.draft.max_restarts=0", engines=faulty) as it:
        it.order(chains=(chain(0), chain(1)))
        last = await it.until(lambda report: report.over)
        assert last.failure is not None
        assert (last.failure.what, last.failure.usage) == ("engine 'draft' died: as configured by dies_after_calls=2", False)


async def test_a_graph_that_is_wrong_for_the_engines_there_is_a_failure() -> None:
    settings = settings_of()
    wrong = structs.replace(settings, plan=structs.replace(settings.plan, engines={"target": settings.plan.engines["target"]}))
    replica = ReplicaWorker(wrong)
    await replica.serve()
    report = await replica.report()
    assert report.over
    assert report.failure is not None


async def test_no_chain_starts_while_too_much_is_not_reported() -> None:
    outbox = Outbox(lambda: None)
    row = blank(CallRow, chain_id="p0#0")
    for _ in range(MAX_ROWS):
        await outbox.room()
        outbox.call(row)
    with anyio.move_on_after(1.0) as waiting:
        await outbox.room()
    assert waiting.cancelled_caught
    assert [len(rows) for rows in outbox.take()] == [MAX_ROWS, 0, 0]
    await outbox.room()
