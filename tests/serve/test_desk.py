"""The desk of a server alone: what is refused, and who hears of what."""

from typing import Any

import pytest

from pipeline.data.problems import ChainSettings
from pipeline.data.requests import ApiError, AskedChat, ChainReply
from pipeline.runtime.admission.feed import Arrivals, Start
from pipeline.serve.desk import CommittedStep, Desk, Ended, Event, ServeLimits
from pipeline.store.rows import ChainRow, StepRow
from tests.support.rows import blank

pytestmark = pytest.mark.anyio


class Asked:
    """A desk at which requests are asked, and what they heard."""

    def __init__(self, **limits: Any) -> None:
        self.arrivals, self.heard = Arrivals(), list[Event]()
        self.desk = Desk(self.arrivals, ServeLimits(**limits), "</think>")

    def ask(self, name: str, samples: int | None = None) -> tuple[Start, ...]:
        chat = AskedChat(model="m", problem="What?", settings=ChainSettings(samples=samples))
        return self.desk.ask(name, chat, {}, self.heard.append)


async def test_chains_begin_in_the_order_in_which_they_were_asked_for_and_have_a_row_each() -> None:
    at = Asked()
    at.ask("one", 2)
    at.ask("two")
    starts = [await at.arrivals.next() for _ in range(3)]
    found = [(start.item.problem_id, start.item.row, start.sample_index, start.order) for start in starts if start]
    assert found == [("one", 1, 0, 0), ("one", 1, 1, 1), ("two", 3, 0, 2)]


async def test_what_waits_is_bounded_and_a_withdrawn_request_makes_room() -> None:
    at = Asked(max_queue=2)
    ticket = at.ask("one", 2)
    with pytest.raises(ApiError, match="2 requests wait already"):
        at.ask("two")
    at.desk.withdraw(ticket, "gone")
    at.ask("three")
    assert (at.desk.waiting, at.desk.taken, at.desk.refused) == (1, 2, 1)


async def test_whoever_asked_hears_the_steps_of_its_chains_and_their_ends() -> None:
    at = Asked()
    at.ask("one", 2)
    for _ in range(2):
        await at.arrivals.next()
    at.desk.step(blank(StepRow, chain_id="one#1", step_text="So 5.</think>"))
    made = {"engines": ("target",), "input_tokens": (3,), "output_tokens": (2,)}
    at.desk.chain(blank(ChainRow, chain_id="one#1", stop_reason="thought_closed", answer_text="5", **made))
    at.desk.chain(blank(ChainRow, chain_id="one#0", stop_reason="error", error_type="ContextOverflow", error_message="too long"))
    step, done, failed = at.heard
    assert step == CommittedStep(1, "So 5.</think>")
    assert isinstance(done, Ended)
    assert isinstance(done.outcome, ChainReply)
    assert (done.index, done.outcome.thought, done.outcome.answer, done.outcome.output_tokens) == (1, "So 5.</think>", "5", {"target": 2})
    assert isinstance(failed, Ended)
    assert isinstance(failed.outcome, ApiError)
    assert (failed.outcome.code, failed.outcome.status) == ("context_length_exceeded", 400)


async def test_a_desk_that_closes_gives_up_what_waits_and_takes_no_more() -> None:
    at = Asked()
    at.ask("one")
    at.desk.close("the end")
    at.arrivals.close()
    [ended] = at.heard
    assert isinstance(ended, Ended)
    assert isinstance(ended.outcome, ApiError)
    assert (ended.outcome.message, ended.outcome.status) == ("the end", 503)
    assert await at.arrivals.next() is None
    with pytest.raises(ApiError, match="the end"):
        at.ask("two")
