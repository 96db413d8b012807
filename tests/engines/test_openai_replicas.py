"""Engine `openai` over several replicas: which of them gets a call, where one goes that failed, whose fault that was, and the end."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import anyio
import pytest

from pipeline.engine import Completion
from pipeline.engines.openai.client import NoAnswer, Server
from pipeline.engines.openai.engine import OpenAIEngine
from pipeline.engines.openai.replicas import FAILURES_IN_ROW, Replicas
from pipeline.engines.openai.request import PRESETS, shared_capabilities
from pipeline.errors import BadCompletion, EngineDead, EngineUnavailable, GraphError, PipelineError, RequestRefused
from pipeline.session.loop import in_loop
from pipeline.system.tasks import background_tasks
from tests.support.served import DIGITS, TOKENIZER, ask, opened, outcome, settled, small_servers, spec_of, talk
from tests.support.small_server import VLLM, Handler, Reply, Sick, SmallServer, edited, hang, raw, small_server, status

RECONNECT_S = 2.0
"""Long enough for a busy machine to answer each question before the start, which it bounds as well."""
Conversation = Callable[[OpenAIEngine, Sequence[SmallServer]], Awaitable[None]]
FAILING = NoAnswer("failing", "answered 500")


def converse(count: int, conversation: Conversation, **fields: Any) -> None:
    """Open an engine over servers and talk to it."""
    with ExitStack() as stack:
        servers = small_servers(stack, count)

        async def both(engine: OpenAIEngine) -> None:
            await conversation(engine, servers)

        talk(spec_of(*servers, **fields), both)


def asked(server: SmallServer) -> int:
    """Requests of more than a token: those that are no questions about the server itself."""
    return sum(body["max_tokens"] > 1 for body in server.bodies)


# Which replica gets a call, by the decisions alone.


class Watched:
    """Replicas without servers on a clock that jumps: `sick` of them fail when they are asked."""

    def __init__(self, sick: dict[str, NoAnswer], tasks: anyio.abc.TaskGroup) -> None:
        self.sick, self.asked = sick, list[tuple[float, str]]()
        self.died = ""
        servers = [Server("engine 'draft'", f"http://127.0.0.1:{port}/v1", None, 1) for port in (1, 2)]
        self.replicas = Replicas(servers, 60.0, self.probe, tasks.start_soon, self.die)

    async def probe(self, server: Server) -> NoAnswer | None:
        name = server.url[-4]
        self.asked.append((anyio.current_time(), name))
        return self.sick.get(name)

    def die(self, reason: str) -> None:
        self.died = self.died or reason


def watched(scene: Callable[[Watched], Awaitable[None]], **sick: NoAnswer) -> Watched:
    found: list[Watched] = []

    async def main() -> None:
        async with background_tasks() as tasks:
            found.append(Watched({name.removeprefix("port"): each for name, each in sick.items()}, tasks))
            await scene(found[0])

    in_loop(main, virtual=True)
    return found[0]


def test_a_call_goes_where_the_fewest_are_in_flight_and_elsewhere_after_a_failure() -> None:
    async def scene(world: Watched) -> None:
        one, other = world.replicas.all
        assert [await world.replicas.take() for _ in range(4)] == [one, other, one, other]
        other.in_flight -= 2
        assert [await world.replicas.take() for _ in range(3)] == [other, other, one]
        assert await world.replicas.take({one}) is other
        world.replicas.failed(one, NoAnswer("busy", "answered 429", retry_after_s=5.0))
        other.in_flight = 50
        assert await world.replicas.take() is other
        await anyio.sleep(6)
        assert await world.replicas.take() is one

    watched(scene)


def test_three_failures_in_a_row_put_a_replica_out_and_an_answer_brings_it_back() -> None:
    async def scene(world: Watched) -> None:
        one, other = world.replicas.all
        for _ in range(FAILURES_IN_ROW - 1):
            world.replicas.failed(one, FAILING)
        world.replicas.succeeded(one)
        for _ in range(FAILURES_IN_ROW):
            assert one.failure is None
            world.replicas.failed(one, FAILING)
        assert [await world.replicas.take() for _ in range(3)] == [other] * 3
        await anyio.sleep(20)
        world.sick.clear()
        await anyio.sleep(20)
        assert await world.replicas.take() is one

    world = watched(scene, port1=FAILING)
    pauses = [after - before for (before, _), (after, _) in zip(world.asked, world.asked[1:], strict=False)]
    assert pauses == pytest.approx([0.5, 1, 2, 4, 8, 10])
    assert not world.died


@pytest.mark.parametrize(
    ("failure", "after_s", "says"),
    [
        (FAILING, 60.0, "at http://127.0.0.1:1/v1 answered 500; none of its servers has answered for reconnect_s=60"),
        (NoAnswer("closed", "answered 401"), 0.0, "at http://127.0.0.1:1/v1 answered 401"),
        (NoAnswer("gone", "answered 404"), 5.0, "answered 404; all of its servers have rejected every request for 5 s"),
        (NoAnswer("malformed", "is odd"), 5.0, "sent an answer that is odd; none of its servers has sent a valid answer for 5 s"),
    ],
)
def test_where_all_are_out_for_too_long_the_engine_ends(failure: NoAnswer, after_s: float, says: str) -> None:
    async def scene(world: Watched) -> None:
        assert await world.replicas.wait_answering() is False
        await anyio.sleep(1)
        world.sick |= {"1": failure, "2": failure}
        for replica in world.replicas.all:
            assert not await world.replicas.answers(replica)
        await anyio.sleep(max(0.0, after_s - 0.5))
        assert not world.died or not after_s
        await anyio.sleep(1.5)

    assert watched(scene).died.endswith(says)


def test_who_asks_at_the_same_time_shares_a_request_and_waits_until_one_answers() -> None:
    async def scene(world: Watched) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(16):
                tasks.start_soon(world.replicas.answers, world.replicas.all[0])
        assert len(world.asked) == 1
        await anyio.sleep(1)
        world.sick["2"] = FAILING
        with anyio.move_on_after(3):
            assert await world.replicas.wait_answering()
        world.sick.clear()
        assert await world.replicas.wait_answering()
        assert not await world.replicas.wait_answering()

    watched(scene, port1=FAILING)


# Whose fault a failure is, with real servers.


@pytest.mark.parametrize("code", [401, 500])
def test_a_call_that_failed_goes_to_another_replica_at_once(code: int) -> None:
    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        servers[0].always = Sick(status(code))
        for number in range(12):
            assert isinstance(await settled(engine, ask(str(number))), Completion)
        assert 1 <= asked(servers[0]) <= 2 * FAILURES_IN_ROW
        assert asked(servers[1]) == 12

    converse(2, conversation)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (raw(b"<html>"), EngineUnavailable),
        (edited(lambda answer: answer["choices"][0].update(token_ids=[], finish_reason="length")), BadCompletion),
        (status(422), RequestRefused),
    ],
    ids=["HTML", "no token", "422"],
)
def test_what_no_replica_answers_is_an_error_of_its_kind_and_starts_over(fault: Any, error: type[PipelineError]) -> None:
    def once(handler: Handler, reply: Reply) -> None:
        (fault if handler.body["max_tokens"] > 1 else Handler.send)(handler, reply)

    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        for server in servers:
            server.always = once
        first, second = await outcome(engine, ask()), await outcome(engine, ask())
        assert isinstance(first, EngineUnavailable)
        assert first.moved
        assert type(second) is error
        assert not getattr(second, "moved", False)
        for server in servers:
            server.always = None
        assert isinstance(await settled(engine, ask()), Completion)

    converse(2, conversation)


@pytest.mark.parametrize(("code", "error"), [(400, RequestRefused), (403, EngineUnavailable)])
def test_a_refusal_is_the_requests_where_the_replica_answers_a_small_one(code: int, error: type[PipelineError]) -> None:
    """Unless it says that it serves nobody: then it was another server behind the same address, and the call counts as one that failed."""

    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        [server] = servers
        before = len(server.bodies)
        server.faults.append(status(code, "not about that"))
        found = await outcome(engine, ask())
        assert type(found) is error
        assert f"{code}: not about that" in str(found)
        assert not getattr(found, "moved", False)
        assert [body["max_tokens"] for body in server.bodies[before:]] == [60, 1]

    converse(1, conversation)


@pytest.mark.slow  # in real time
def test_calls_wait_for_a_server_that_is_restarted_and_no_longer() -> None:
    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        [server] = servers
        server.stop()
        for _ in range(FAILURES_IN_ROW):
            assert "broke the connection" in (said := str(await outcome(engine, ask()))) or "cannot be reached" in said
        async with anyio.create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(engine.generate, ask(str(number)))
            await anyio.wait_all_tasks_blocked()
            assert (engine.statistics().running, engine.statistics().waiting) == (0, 5)
            server.start()
        assert engine.statistics().requests == 5
        server.stop()
        assert isinstance(error := await settled(engine, ask()), EngineUnavailable)
        for _ in range(FAILURES_IN_ROW):
            error = await settled(engine, ask())
        assert isinstance(error, EngineDead)
        assert str(error).endswith(f"none of its servers has answered for reconnect_s={RECONNECT_S:g}")

    converse(1, conversation, reconnect_s=RECONNECT_S)


def test_a_call_that_timed_out_is_sent_elsewhere_next_time() -> None:
    async def conversation(engine: OpenAIEngine, servers: Sequence[SmallServer]) -> None:
        servers[0].always = Sick(hang)
        with anyio.move_on_after(0.2):
            await engine.generate(ask())
        assert isinstance(await outcome(engine, ask()), Completion)
        assert [asked(server) for server in servers] == [1, 1]

    converse(2, conversation, timeout_s=0.2)


# Deployments.


def test_the_weaker_replica_counts_for_all() -> None:
    async def conversation(engine: OpenAIEngine) -> None:
        assert engine.max_model_len == 256
        assert {"prompts": "ids", "outputs": "ids", "options": "among the top 20 tokens"}.items() <= engine.facts.items()
        assert engine.facts["servers"] == (one.base_url, other.base_url)
        assert "scoring" in str(engine.facts["cannot"])
        for _ in range(2):
            assert (await engine.generate(ask(max_tokens=1, option_ids=DIGITS[:2]))).option_logprobs[1] == -1.0

    older = replace(VLLM, exact=False, card={"max_model_len": 256})
    with small_server(VLLM, TOKENIZER) as one, small_server(older, TOKENIZER) as other:
        talk(spec_of(one, other), conversation)
    shared = shared_capabilities(PRESETS["vllm"], PRESETS["generic"])
    assert (shared.prompts, shared.top_logprobs, shared.fields) == ("text", 5, PRESETS["generic"].fields)


def test_a_replica_with_another_model_is_named() -> None:
    with small_server(VLLM, TOKENIZER) as one, small_server(VLLM, TOKENIZER, model="huge") as other:
        both = spec_of(one, other)
        with pytest.raises(GraphError, match=f"{other.base_url} does not serve 'tiny'; known are `huge`"):
            opened(both)
