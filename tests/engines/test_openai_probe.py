"""What engine `openai` finds out about a server before a run: what it cannot do, and whether it serves a model that it does not list."""

import json
from dataclasses import replace
from typing import Any

import anyio
import pytest

from pipeline.engines.openai.backend import open_openai
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError
from tests.support.paths import MODELS
from tests.support.small_server import HOSTED, LLAMA, OLD_VLLM, VLLM, Kind, SmallServer, small_server, status

TOKENIZER = HFTokenizer(str(MODELS / "tiny-target"))


def found(server: SmallServer, **fields: Any) -> Any:
    """The fact `cannot` of an engine over `server`."""

    async def main() -> Any:
        given = {"model": "tiny", "base_url": server.base_url, "tokenizer": "bundled:tiny-target", "max_model_len": 512} | fields
        async with open_openai({"target": OpenAISpec(**given)}) as engines:
            return engines["target"].facts["cannot"]

    return anyio.run(main)


@pytest.mark.parametrize(
    ("kind", "cannot"),
    [
        (VLLM, ()),
        (replace(VLLM, logprobs=False), ("options", "scoring")),
        (replace(VLLM, streams=False), ("interrupt",)),
        (replace(VLLM, seeds=False), ("seeds",)),
        (OLD_VLLM, ("scoring",)),
        (LLAMA, ("scoring",)),
        (replace(LLAMA, hides=True), ("scoring", "marks")),
        (replace(LLAMA, hides=True, ids=True), ()),
        (HOSTED, ("scoring", "top_k", "min_p")),
        (replace(HOSTED, logprobs=False, seeds=False), ("options", "scoring", "top_k", "min_p", "seeds")),
    ],
    ids=lambda each: "" if isinstance(each, Kind) else "-".join(each) or "nothing",
)
def test_what_a_server_cannot_do_is_found_out(kind: Kind, cannot: tuple[str, ...]) -> None:
    with small_server(kind, TOKENIZER) as server:
        assert found(server) == cannot


def test_a_server_that_takes_no_seed_is_sent_none() -> None:
    with small_server(replace(HOSTED, seeds=False), TOKENIZER) as server:
        found(server)
        assert "seed" not in server.bodies[-1]


def test_a_model_that_is_not_listed_is_served_where_it_answers_and_no_other_does() -> None:
    with small_server(VLLM, TOKENIZER) as server:
        server.unlisted = True
        assert found(server) == ()
        with pytest.raises(GraphError, match=r"does not serve 'tinny'; "):
            found(server, model="tinny")


def test_a_server_that_answers_whatever_model_is_asked_for_does_not_serve_one_that_it_does_not_list() -> None:
    with small_server(VLLM, TOKENIZER) as server:
        server.always = lambda handler, reply: handler.send((200, {}, b'{"data": [{"id": "other"}], "choices": []}'))
        with pytest.raises(GraphError, match="does not serve 'tiny'; "):
            found(server)


@pytest.mark.parametrize(
    ("listed", "asked", "said"),
    [
        (
            404,
            404,
            r"returns no list of models \(not now\), and no completion \(not now\); base_url usually ends with /v1$",
        ),
        (500, 500, r"returns no list of models \(not now\), and the server rejects a completion with 'tiny' \(status 500\): not now$"),
        (None, 500, r"does not list 'tiny', and rejects a completion with it \(status 500\): not now; "),
    ],
)
def test_a_server_that_lists_nothing_and_answers_nothing_is_quoted(listed: int | None, asked: int, said: str) -> None:
    def fails(handler: Any, reply: Any) -> None:
        code = listed if handler.path.endswith("/models") else asked
        handler.send(reply) if code is None else status(code)(handler, reply)

    with small_server(VLLM, TOKENIZER) as server:
        server.unlisted, server.always = True, fails
        with pytest.raises(GraphError, match=said):
            found(server)


def test_a_server_that_closes_the_connection_behind_its_failure_is_asked_once_more() -> None:
    def fails(handler: Any, reply: Any) -> None:
        handler.close_connection = handler.path.endswith("/models")
        (status(500) if handler.close_connection else handler.__class__.send)(handler, reply)

    with small_server(VLLM, TOKENIZER) as server:
        server.always = fails
        assert found(server) == ("interrupt",)


def test_a_server_without_a_list_is_asked_for_a_completion() -> None:
    with small_server(VLLM, TOKENIZER) as server:
        server.always = lambda handler, reply: (status(500) if handler.path.endswith("/models") else handler.__class__.send)(handler, reply)
        assert found(server) == ("interrupt",)  # no answer comes in pieces


def test_further_fields_go_with_every_request_and_those_that_a_request_has_are_refused() -> None:
    nested = {"reasoning": {"effort": "low", "budgets": [1, None, 2.5]}}
    with small_server(VLLM, TOKENIZER) as server:
        found(server, extra=nested)
        assert all(body.items() >= nested.items() for body in server.bodies)
        json.dumps(server.bodies)
    for extra, said in [
        ({"seed": 1}, "extra must not hold `seed`: each request has its own"),
        ({"chat_template_kwargs": {}}, "the template is rendered here"),
        ({"x": {"y": [float("nan")]}}, r"extra\.x\.y\[0\] is nan"),
        ({"x": {1: 2}}, "extra.x has the key 1"),
    ]:
        with pytest.raises(ValueError, match=said):
            OpenAISpec(model="m", base_url="http://127.0.0.1:1/v1", extra=extra)
