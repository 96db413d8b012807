"""Engine `openai` over several replicas: where a call goes that failed, and whose fault that was."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Any

import anyio
import pytest

from pipeline.engine import Request
from pipeline.engines.openai.backend import open_openai
from pipeline.engines.openai.breaker import FAILURES_IN_ROW
from pipeline.engines.openai.engine import OpenAIEngine
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import BadCompletion, EngineDead, EngineUnavailable, PipelineError, RequestRefused
from tests.support.paths import ROOT
from tests.support.small_server import VLLM, WAIT_S, Handler, Reply, Sick, SmallServer, cut, edited, hang, raw, small_server, status

TOKENIZER = HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))
PROMPT = TOKENIZER.encode(TOKENIZER.render([{"role": "user", "content": "Tom has 3 pens and buys 2. How many?"}]))
RECONNECT_S = 2.0
"""Long enough for a busy machine to answer each question before the start, which it bounds as well."""

Conversation = Callable[[OpenAIEngine, Sequence[SmallServer]], Awaitable[None]]


def ask(name: str = "r", **fields: Any) -> Request:
    return Request(**{"request_id": name, "prompt_ids": PROMPT, "max_tokens": 60, "affinity": name} | fields)


def talk(count: int, conversation: Conversation, **fields: Any) -> None:
    """Open an engine over so many servers and talk to it; nothing takes longer than `WAIT_S`."""

    async def main() -> None:
        spec = OpenAISpec(model="tiny", base_url=tuple(server.base_url for server in servers), tokenizer="bundled:tiny-target", **fields)
        with anyio.fail_after(WAIT_S):
            async with open_openai({"draft": spec}) as engines:
                await conversation(engines["draft"], servers)

    with ExitStack() as stack:
        servers = [stack.enter_context(small_server(VLLM, TOKENIZER)) for _ in range(count)]
        anyio.run(main)


async def outcome(engine: OpenAIEngine, request: Request) -> PipelineError | None:
    try:
        await engine.generate(request)
    except PipelineError as error:
        return error
    return None


async def moves(engine: OpenAIEngine, request: Request) -> int:
    """How often the request is moved before it is answered."""
    for count in range(100):
        error = await outcome(engine, request)
        if error is None:
            return count
        assert isinstance(error, EngineUnavailable), error
        assert error.moved, error
    raise AssertionError("it is moved for ever")


def asked(server: SmallServer) -> int:
    """Requests of more than a token: those that are no questions about the server itself."""
    return sum(body["max_tokens"] > 1 for body in server.bodies)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 500, 503])
def test_a_call_that_failed_goes_to_another_replica_at_once_and_its_chain_stays_there(code: int) -> None:
    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        servers[0].always = Sick(status(code))
        assert await moves(engine, ask()) == 1
        for _ in range(5):
            assert await moves(engine, ask()) == 0
        assert (asked(servers[0]), asked(servers[1])) == (1, 6)

    talk(2, conversation)


def test_a_replica_that_fails_fast_does_not_draw_the_calls() -> None:
    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        servers[0].always = Sick(status(500))
        for chain in range(40):
            await moves(engine, ask(str(chain)))
        assert FAILURES_IN_ROW <= asked(servers[0]) <= 2 * FAILURES_IN_ROW
        assert asked(servers[1]) == 40

    talk(2, conversation)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (status(503), EngineUnavailable),
        (raw(b"<html>"), EngineUnavailable),
        (raw(b"{}"), BadCompletion),
        (edited(lambda answer: answer["choices"][0].update(token_ids=[], finish_reason="length")), BadCompletion),
    ],
    ids=["503", "HTML", "another JSON", "no token"],
)
def test_what_no_replica_answers_is_an_error_of_its_kind_and_starts_over(fault: Any, error: type[PipelineError]) -> None:
    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        for server in servers:
            server.faults.extend([fault] * 2)
        for _ in range(2):
            first, second = await outcome(engine, ask()), await outcome(engine, ask())
            assert isinstance(first, EngineUnavailable)
            assert first.moved
            assert type(second) is error
            assert not getattr(second, "moved", False)
        assert await outcome(engine, ask()) is None

    talk(2, conversation)


@pytest.mark.parametrize(
    ("code", "error"), [(400, RequestRefused), (422, RequestRefused), (403, EngineUnavailable), (404, EngineUnavailable)]
)
def test_a_refusal_is_the_requests_where_the_replica_answers_a_probe(code: int, error: type[PipelineError]) -> None:
    """Unless it says that it serves nobody: then it was another server behind the same address, and the call counts as one that failed."""

    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        before = len(server_of(servers).bodies)
        server_of(servers).faults.append(status(code, "not about that"))
        found = await outcome(engine, ask())
        assert type(found) is error
        assert f"{code}: not about that" in str(found)
        assert not getattr(found, "moved", False)
        assert [body["max_tokens"] for body in server_of(servers).bodies[before:]] == [60, 1]
        assert await outcome(engine, ask()) is None

    talk(1, conversation)


def server_of(servers: Sequence[SmallServer]) -> SmallServer:
    [server] = servers
    return server


def test_many_refusals_at_once_share_a_probe() -> None:
    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        server = server_of(servers)
        at_once: list[int] = []
        lock = 0

        def counted(handler: Handler, reply: Reply) -> None:
            nonlocal lock
            if handler.body["max_tokens"] > 1:
                status(400)(handler, reply)
                return
            lock += 1
            at_once.append(lock)
            handler.send(reply)
            lock -= 1

        before = len(server.bodies)
        server.always = counted
        async with anyio.create_task_group() as tasks:
            for index in range(16):
                tasks.start_soon(outcome, engine, ask(str(index)))
        assert asked(server) == 16
        assert max(at_once) == 1
        assert len(server.bodies) - before < 32

    talk(1, conversation)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (401, "the key is not accepted"),
        (402, "the account has no credit left"),
        (404, f"no such model or address is served; all of its servers have rejected every request for {RECONNECT_S:g} s"),
    ],
)
def test_where_every_replica_refuses_everything_the_engine_is_dead(code: int, why: str) -> None:
    """At once where no server will be paid or knows the key, after a while where a model may be loaded."""

    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        for server in servers:
            server.always = status(code, "no")
        died = []
        async with anyio.create_task_group() as tasks:
            for index in range(8):

                async def one(request: Request) -> None:
                    while not isinstance(error := await outcome(engine, request), EngineDead):
                        assert isinstance(error, EngineUnavailable)
                        assert error.moved
                    died.append(str(error))

                tasks.start_soon(one, ask(str(index)))
        assert len(died) == 8
        assert {words.partition("; ")[2] for words in died} == {why}
        assert f"answered {code}: no" in died[0]

    talk(2, conversation, reconnect_s=RECONNECT_S)


def test_a_replica_that_refused_everything_gets_calls_again_when_it_answers() -> None:
    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        server = server_of(servers)
        server.always = status(404, "model is not loaded")

        async def load() -> None:
            await anyio.to_thread.run_sync(server.wait_for, lambda seen: len(server.bodies) == before + 2)
            server.always = None

        before = len(server.bodies)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(load)
            assert await moves(engine, ask()) == 1

    talk(1, conversation)


def test_calls_at_a_replica_that_hangs_are_moved() -> None:
    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        servers[0].always = Sick(hang)
        moved: list[int] = []
        answered = anyio.Event()

        async def one(request: Request) -> None:
            moved.append(await moves(engine, request))
            if len(moved) == 2:
                answered.set()

        async with anyio.create_task_group() as tasks:
            for index in range(4):
                tasks.start_soon(one, ask(str(index)))
            await answered.wait()
            tasks.start_soon(one, ask("later"))  # an answer of the other one since
        assert sorted(moved) == [0, 0, 0, 1, 1]

    talk(2, conversation)


def test_a_call_that_timed_out_is_sent_elsewhere_next_time() -> None:
    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        assert await outcome(engine, ask()) is None
        home = max(servers, key=asked)
        home.always = hang
        with anyio.move_on_after(0.2):
            await engine.generate(ask())
        assert await outcome(engine, ask()) is None
        assert asked(home) == 2

    talk(2, conversation, timeout_s=0.2)


def test_a_broken_connection_costs_one_call_and_no_replica() -> None:
    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        servers[0].faults.append(cut)
        assert await moves(engine, ask()) == 1
        while asked(servers[0]) < 2:
            assert await moves(engine, ask(str(asked(servers[1])))) == 0

    talk(2, conversation)


def test_a_busy_replica_is_left_alone_while_others_are_free() -> None:
    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        servers[0].faults.append(status(429, headers={"Retry-After": "1000"}))
        assert await moves(engine, ask()) == 1
        before = len(servers[0].bodies)
        for chain in range(5):
            assert await moves(engine, ask(str(chain))) == 0
        assert len(servers[0].bodies) == before

    talk(2, conversation)


def test_an_engine_says_whether_it_answers_anybody() -> None:
    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        server = server_of(servers)
        assert await engine.wait_answering() is False
        server.faults.append(status(500))
        assert await engine.wait_answering() is True
        server.always = status(500, "broken")
        with pytest.raises(EngineDead, match=f"answered 500: broken; none of its servers has answered for reconnect_s={RECONNECT_S:g}"):
            await engine.wait_answering()
        with pytest.raises(EngineDead):
            await engine.generate(ask())

    talk(1, conversation, reconnect_s=RECONNECT_S)
