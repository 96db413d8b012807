"""One replica, told what to do by a test."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import structs

from pipeline.cluster.messages import Assignment, Orders, Report
from pipeline.cluster.replica import GATHER_S, MOST_ROWS, REPORT_S, HandedChains, Outbox, Replica
from pipeline.data.problems import Problem
from pipeline.runtime.resume_state import ResumedChain, ResumeState
from pipeline.session.preflight import RunSettings, load_plan
from pipeline.store.events import CallRow
from pipeline.tasks import background_tasks
from tests.support.fated_replicas import BRIEF, options_of
from tests.support.paths import ROOT, SIM
from tests.support.rows import blank

pytestmark = pytest.mark.anyio
NS = 1_800_000_000 * 10**9


def chain(place: int, **fields: Any) -> Assignment:
    problem = Problem(row=place + 1, problem_id=f"p{place}", problem=f"Problem number {place}?", answer=None)
    return Assignment(item=problem, sample_index=0, order=place, **fields)


def settings_of(*more: str, **options: Any) -> RunSettings:
    plan = load_plan(ROOT / "graphs/speccot.yaml", SIM, (*BRIEF, *more))
    return RunSettings(plan=plan, options=options_of(Path("/"), "run", Path("/problems"), **options), run_id="run", virtual_time=True)


class Driven:
    """A replica and all that it has reported."""

    def __init__(self, settings: RunSettings) -> None:
        self.replica, self.reports = Replica(settings), list[Report]()

    def order(self, **orders: Any) -> None:
        self.replica.order(Orders(**{"unix_ns": NS} | orders))

    def rows(self, table: str) -> list[Any]:
        return [row for report in self.reports for row in getattr(report, table)]

    async def until(self, condition: Callable[[Report], object]) -> Report:
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
        report = await it.until(lambda report: report.received)
        assert (report.received, report.live, report.wants) == (3, 2, 1), "one waits for a place, and one more may wait"
        await it.until(lambda report: len(it.rows("chains")) == 3)
        took = round((anyio.current_time() - began) * 1e9)
        assert {row.stop_reason for row in it.rows("chains")} == {"thought_closed"}
        assert min(row.submit_unix_ns for row in it.rows("calls")) == NS
        assert all(NS <= row.end_unix_ns <= NS + took for row in it.rows("chains"))
        assert [row.chain_id for row in it.rows("calls") if row.call_index == 0] == ["p0#0", "p1#0", "p2#0"]


async def test_orders_of_before_it_is_open_are_carried_out() -> None:
    async with driven(opened=False) as it:
        it.order(chains=(chain(0), chain(1)), release=("p1#0", "p9#0"), no_more=True)
        await it.until(lambda report: it.rows("chains"))
        assert it.rows("released") == ["p1#0"]
        assert {row.chain_id for row in it.rows("calls")} == {"p0#0"}


@pytest.mark.parametrize("end", ["drain", "abort"])
async def test_it_can_be_ended_before_it_is_open(end: str) -> None:
    async with driven(opened=False) as it:
        it.order(end=end)
        report = await it.until(lambda report: report.over)
        assert (report.failure, report.wants) == (None, 0)
        assert anyio.current_time() <= GATHER_S


async def test_live_and_queued_chains_and_the_one_that_waits_for_a_place_are_given_back() -> None:
    async with driven(batch_size=1) as it:
        it.order(chains=tuple(chain(place) for place in range(4)))
        await it.until(lambda report: it.rows("calls"))
        it.order(release=("p3#0",))
        assert (await it.until(lambda report: report.released)).released == ["p3#0"]
        it.order(release=("p1#0",))
        assert (await it.until(lambda report: report.released)).released == ["p1#0"], "it waits for a place"
        it.order(release=("p0#0",))
        report = await it.until(lambda report: report.released)
        assert report.released == ["p0#0"]
        assert [row.error_type for row in report.calls if row.chain_id == "p0#0"][-1] == "CallCancelled"
        it.order(release=("p0#0", "unknown"))
        await it.until(lambda report: report.chains)
        assert [row.chain_id for row in it.rows("chains")] == ["p2#0"]
        assert it.rows("released") == ["p3#0", "p1#0", "p0#0"]


async def test_a_chain_that_was_given_back_goes_on_where_it_was() -> None:
    async with driven() as it:
        it.order(chains=(chain(0),))
        await it.until(lambda report: it.rows("chains"))
        whole, steps = it.rows("chains")[0], it.rows("steps")
    async with driven() as it:
        it.order(chains=(chain(0, resumed=ResumedChain(steps=[steps[0].step_token_ids], modes=[None], attempts=1)),))
        await it.until(lambda report: it.rows("chains"))
        assert [row.step_token_ids for row in it.rows("steps")] == [row.step_token_ids for row in steps[1:]]
        assert it.rows("calls")[0].call_index == 1
        assert it.rows("chains")[0].answer_text == whole.answer_text


async def test_draining_gives_back_what_has_not_begun_and_ends_the_rest() -> None:
    async with driven(batch_size=1) as it:
        it.order(chains=tuple(chain(place) for place in range(4)))
        await it.until(lambda report: it.rows("calls"))
        it.order(end="drain")
        last = await it.until(lambda report: report.over)
        assert [row.chain_id for row in it.rows("chains")] == ["p0#0"]
        assert it.rows("released") == ["p2#0", "p3#0"], "and that which waited for a place is not heard of any more"
        assert (last.wants, last.failure) == (0, None)
        assert last.statistics["target"].requests == sum(row.engine == "target" for row in it.rows("calls"))


async def test_aborting_cancels_what_is_in_flight_at_once() -> None:
    async with driven() as it:
        it.order(chains=tuple(chain(place) for place in range(4)))
        await it.until(lambda report: it.rows("calls"))
        now = anyio.current_time()
        it.order(end="abort")
        await it.until(lambda report: report.over)
        assert anyio.current_time() == pytest.approx(now + GATHER_S)
        assert {row.end_unix_ns - NS for row in it.rows("chains")} == {round((now - GATHER_S) * 1e9)}
        assert sorted((row.chain_id, row.stop_reason) for row in it.rows("chains")) == [("p0#0", "cancelled"), ("p1#0", "cancelled")]


async def test_a_dead_engine_is_the_failure_of_the_replica() -> None:
    async with driven("engines.draft.faults.dies_after_calls=2", "engines.draft.max_restarts=0") as it:
        it.order(chains=(chain(0), chain(1)))
        last = await it.until(lambda report: report.over)
        assert last.failure is not None
        assert (last.failure.what, last.failure.usage) == ("engine 'draft' died: as configured by dies_after_calls=2", False)
        assert {row.stop_reason for row in it.rows("chains")} == {"cancelled"}


async def test_a_graph_that_is_wrong_for_the_engines_there_is_the_users_failure() -> None:
    settings = settings_of()
    wrong = structs.replace(settings, plan=structs.replace(settings.plan, engines={"target": settings.plan.engines["target"]}))
    replica = Replica(wrong)
    await replica.serve()
    report = await replica.report()
    assert report.over
    assert report.failure is not None


async def test_no_chain_starts_while_too_much_is_not_reported() -> None:
    told: list[None] = []
    outbox = Outbox(lambda: told.append(None))
    await outbox.room()
    row = blank(CallRow, chain_id="p0#0")
    for _ in range(MOST_ROWS):
        outbox.call(row)
    assert len(told) == MOST_ROWS
    with anyio.move_on_after(1.0) as waiting:
        await outbox.room()
    assert waiting.cancelled_caught
    calls, *others = outbox.take()
    assert (len(calls), others) == (MOST_ROWS, [[], [], []])
    await outbox.room()
    assert outbox.take() == ([], [], [], [])


async def test_handed_chains_come_in_their_order_and_can_be_taken_back() -> None:
    state = ResumeState()
    feed = HandedChains(state)
    feed.add(chain(0))
    feed.add(chain(1, resumed=ResumedChain(attempts=1)))
    feed.add(chain(2))
    assert (len(feed), feed.names(), list(state.chains)) == (3, ["p0#0", "p1#0", "p2#0"], ["p1#0"])
    assert (feed.take_back("p1#0"), feed.take_back("p1#0"), state.chains) == (True, False, {})
    assert [(await feed.next()).order for _ in range(2)] == [0, 2]  # type: ignore[union-attr]
    assert (feed.received, feed.asked) == (3, False)


async def test_who_waits_for_a_chain_gets_the_next_one() -> None:
    feed, got = HandedChains(ResumeState()), list[int]()

    async def take() -> None:
        while (start := await feed.next()) is not None:
            got.append(start.order)

    async with background_tasks() as tasks:
        tasks.start_soon(take)
        await anyio.sleep(1.0)
        assert feed.asked
        feed.add(chain(4))
        feed.add(chain(5))
        await anyio.sleep(1.0)
        assert (got, feed.asked) == ([4, 5], True)
