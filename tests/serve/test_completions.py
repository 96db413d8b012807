"""Requests without a run behind them: a stream says what the whole reply does, clients leave early, and a desk is full or closes."""

import json
from typing import Any

import anyio
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from pipeline.data.problems import ChainSettings
from pipeline.data.requests import ApiError, AskedChat
from pipeline.reasoning.chain import chain_id
from pipeline.runtime.admission.feed import Arrivals, Start
from pipeline.serve.app import Address, new_app
from pipeline.serve.completions import URL, ChatEndpoint
from pipeline.serve.desk import Desk, Ended, Event, ServeLimits
from pipeline.store.rows import ChainRow, StepRow
from tests.support.rows import blank

pytestmark = pytest.mark.anyio
CLOSE = "[/reason]"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def answer(steps: tuple[str, ...], said: str, **more: Any) -> httpx2.Response:
    """The response to a request whose chain has these steps and answers what is `said`."""
    arrivals = Arrivals()
    desk = Desk(arrivals, ServeLimits(), CLOSE)

    async def solve() -> None:
        start = await arrivals.next()
        assert start is not None
        name = chain_id(start.item.problem_id, start.sample_index)
        for text in steps:
            desk.step(blank(StepRow, chain_id=name, step_text=text))
        desk.chain(blank(ChainRow, chain_id=name, stop_reason="thought_closed", answer_text=said))

    endpoint = ChatEndpoint(desk, "m")
    app = Starlette(routes=[Route(URL, endpoint.__call__, methods=["POST"])])
    body = {"model": "m", "messages": [{"role": "user", "content": "What?"}], **more}
    async with (
        anyio.create_task_group() as tasks,
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://server") as client,
    ):
        tasks.start_soon(solve)
        return await client.post(URL, json=body)


THOUGHTS: dict[tuple[str, ...], str | None] = {
    ("Two ", f"and three.{CLOSE}"): "Two and three.",
    ("Two.", CLOSE): "Two.",
    ("Two ", "and"): "Two and",
    ("It is</think>",): "It is</think>",
    (CLOSE,): None,
}


@pytest.mark.parametrize(("steps", "thought"), THOUGHTS.items())
async def test_a_thought_ends_before_the_closing_tag_of_the_graph(steps: tuple[str, ...], thought: str | None) -> None:
    [whole] = (await answer(steps, "\n\nIt is 5.\n\nDone", stop=["\n\n"])).json()["choices"]
    assert whole["message"]["reasoning_content"] == thought
    assert whole["message"]["content"] == "It is 5."
    streamed = await answer(steps, "\n\nIt is 5.\n\nDone", stop=["\n\n"], stream=True)
    *pieces, done = (line.removeprefix("data: ") for line in streamed.text.split("\n\n") if line)
    deltas = [json.loads(piece)["choices"][0]["delta"] for piece in pieces]
    assert done == "[DONE]"
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == (thought or "")
    assert "".join(delta.get("content", "") for delta in deltas) == "It is 5."


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_failure_of_the_server() -> None:
    desk = Desk(Arrivals(), ServeLimits(), CLOSE)
    app = new_app(ChatEndpoint(desk, "m"), Address("localhost", 0), lambda: "serving", lambda: (b"", ""))
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": URL, "headers": headers, "query_string": b""}
    came = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(came)

    async def send(message: Any) -> None:
        pass

    await app(scope, receive, send)
    assert desk.taken == 0


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
