"""Interruptible requests of engine `openai`, which are streamed, against a small real server of each kind."""

import re
from typing import Any, NamedTuple

import anyio
import pytest
from msgspec import structs

from pipeline.engine import Completion
from pipeline.engines.openai.answers import StreamedAnswer
from pipeline.engines.openai.client import NoAnswer
from pipeline.engines.openai.engine import OpenAIEngine
from pipeline.errors import BadCompletion, EngineUnavailable, PipelineError, RequestRefused
from tests.support.served import KINDS, TOKENIZER, ask, outcome, spec_of, talk
from tests.support.small_server import HOSTED, VLLM, Fault, Handler, Kind, SmallServer, small_server, streamed

every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
REQUEST = ask(interruptible=True)


class Answers(NamedTuple):
    """What a server answered to a request that is streamed, and to the same one that is not."""

    in_pieces: Completion
    whole: Completion
    server: SmallServer


def asked(kind: Kind, fault: Fault, request: Any, interrupts: int = 0) -> Answers:
    """The answers to a request that is interrupted once what the server sends has been sent, and to the same one as a whole."""
    given: list[Completion | PipelineError] = []

    async def conversation(engine: OpenAIEngine) -> None:
        async def ask_in_pieces() -> None:
            given.append(await outcome(engine, request))

        server.always = fault
        given.append(await engine.generate(structs.replace(request, interruptible=False)))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_in_pieces)
            if interrupts:
                await anyio.to_thread.run_sync(server.streaming.acquire)
                await until_read(engine)
            for _ in range(interrupts):
                engine.interrupt(request.request_id)

    with small_server(kind, TOKENIZER) as server:
        talk(spec_of(server), conversation)
        whole, in_pieces = given
        if isinstance(in_pieces, PipelineError):
            raise in_pieces
        assert isinstance(whole, Completion)
        return Answers(in_pieces, whole, server)


async def until_read(engine: OpenAIEngine) -> None:
    """Let the engine read what its server has sent: a later question is answered after it."""
    for _ in range(3):
        await engine.generate(ask("later", max_tokens=1, logprobs=False))


@every_kind
@pytest.mark.parametrize("fields", [{}, {"n": 3, "temperature": 0.7, "stop": ("\n\n",)}, {"max_tokens": 4}], ids=str)
def test_a_stream_to_its_end_is_the_answer_as_a_whole(kind: Kind, fields: dict[str, Any]) -> None:
    request = structs.replace(REQUEST, **fields)
    in_pieces, whole, server = asked(kind, streamed(), request)
    assert in_pieces == whole
    copies = 1 if kind.many else request.n
    assert [body.get("stream", False) for body in server.bodies[-2 * copies :]] == [False] * copies + [True] * copies
    assert ("stream_options" in server.bodies[-1]) == (kind != HOSTED)


@every_kind
def test_an_interruption_gives_what_has_come_and_closes_the_stream(kind: Kind) -> None:
    cut, whole, server = asked(kind, streamed(7), REQUEST, interrupts=2)
    server.wait_until_alone()
    (part,) = cut.candidates
    assert (part.finish_reason, part.stop_reason) == ("interrupted", None)
    assert part.text
    assert whole.candidates[0].text.startswith(part.text)
    assert cut.usage.output_tokens == len(part.ids) > 0
    if kind == VLLM:
        assert part.ids == whole.candidates[0].ids[:7]
        assert part.cumulative_logprob == -3.5


def test_of_several_candidates_those_that_have_ended_keep_their_reason() -> None:
    request = structs.replace(REQUEST, n=3, temperature=0.7, stop=("\n\n",))
    first, second, _ = asked(VLLM, streamed(), request).whole.candidates
    cut = asked(VLLM, streamed(len(first.ids) + 3), request, 1).in_pieces
    assert cut.candidates[0] == first
    assert [(c.ids, c.finish_reason) for c in cut.candidates[1:]] == [(second.ids[:2], "interrupted"), ((), "interrupted")]


@pytest.mark.parametrize(
    ("then", "error", "says"),
    [
        (b"", EngineUnavailable, "broke its answer off$"),
        (b'data: {"error": {"message": "out of memory", "code": 500}}\n\n', EngineUnavailable, "broke its answer off: out of memory"),
        (b'data: {"choices": [{"text": "x", "finish_reason": "error"}]}\n\n', EngineUnavailable, "aborted the request"),
        (b'data: {"error": {"message": "no more", "code": 400}, "choices": []}', RequestRefused, "broke its answer off: no more"),
        (b'data: {"choices": [{"index": "x"}]}\n\n', BadCompletion, "is not a completion"),
    ],
)
def test_a_stream_that_goes_wrong_is_no_answer(then: bytes, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        asked(VLLM, streamed(5, then=then), REQUEST)
    assert type(caught.value) is error
    assert re.search(says, str(caught.value))


def test_a_server_that_answers_as_a_whole_is_understood() -> None:
    answers = asked(VLLM, Handler.send, REQUEST)
    assert answers.in_pieces == answers.whole


@pytest.mark.parametrize(
    "last",
    [
        b"",
        b"data: [DONE]",
        b'data: {"choices": null, "usage": {"prompt_tokens": 3}}\n\ndata: [DONE]\n\n',
        b'data: {"usage": {"prompt_tokens": 3}}',
        b'data: {"choices": [], "error": null, "usage": {"prompt_tokens": 3}}\n\n',
        b'event: end\ndata: {"id": "x", "model": "m"}\n\n: bye\n',
    ],
)
def test_bytes_may_be_cut_anywhere_and_what_is_stated_last_may_have_no_choices(last: bytes) -> None:
    first = b': hello\r\n\r\ndata: {"choices": [{"index": 0, "text": "a"}]}\r\n\r\n'
    events = first + b'data:{"choices": [{"text": "b", "finish_reason": "stop"}]}\n\n' + last
    for size in (1, 2, 7, len(events)):
        answer = StreamedAnswer()
        for start in range(0, len(events), size):
            answer.feed(events[start : start + size])
        (choice,) = answer.body().choices
        assert (choice.text, choice.finish_reason) == ("ab", "stop")
        assert answer.body().counted.prompt_tokens == (3 if b"usage" in last else None)


def test_nothing_is_an_answer_only_where_it_was_interrupted() -> None:
    with pytest.raises(NoAnswer, match="broke its answer off"):
        StreamedAnswer().body()
    assert [choice.finish_reason for choice in StreamedAnswer().interrupted(2).choices] == ["interrupted"] * 2
    spoilt = StreamedAnswer()
    spoilt.feed(b'data: {"choices": 3}\n')
    with pytest.raises(NoAnswer, match="is not a completion"):
        spoilt.interrupted(1)
