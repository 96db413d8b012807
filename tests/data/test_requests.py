"""Requests of the OpenAI API: what is asked in a body or in a line of a batch, each refusal with its parameter and code, and the reply."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.data.problems import ChainSettings, Problem
from pipeline.data.reading import read_files
from pipeline.data.requests import NEUTRAL, NO_EFFECT, ApiError, AskedChat, ChainReply, completion, read_chat
from pipeline.graph.prompts import Message
from tests.support.requests import request, write_batch

USER = {"role": "user", "content": "2+2?"}
PLAIN: dict[str, Any] = {"model": "m", "messages": [USER]}
ALL: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]},
        {"role": "assistant", "content": "2", "reasoning_content": "left out", "tool_calls": []},
        USER,
    ],
    "max_completion_tokens": 9, "temperature": 1, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "seed": -3, "n": 2, "stop": "\n", "stream": True,
    "stream_options": {"include_usage": True},
}  # fmt: skip


def test_a_body_with_all_that_is_obeyed() -> None:
    settings = ChainSettings(max_tokens=9, temperature=1.0, top_p=0.5, top_k=0, min_p=0.1, seed=-3, stop=("\n",), samples=2)
    history = (Message("system", "Be brief."), Message("user", "1+1?"), Message("assistant", "2"))
    asked = AskedChat(model="m", problem="2+2?", history=history, settings=settings, stream=True, include_usage=True)
    assert read_chat(ALL) == read_chat(msgspec.json.encode(ALL)) == asked
    assert settings.sampling == {"temperature": 1.0, "top_p": 0.5, "top_k": 0, "min_p": 0.1}


def test_what_asks_for_nothing_is_no_setting() -> None:
    neutral = [{name: value} for name, values in NEUTRAL.items() for value in (*values, None)]
    changes = [*neutral, {"tools": []}, {"logit_bias": {}}, dict.fromkeys(NO_EFFECT, "x"), dict.fromkeys(ALL.keys() - PLAIN.keys())]
    assert {read_chat({**PLAIN, **each}) for each in changes} == {AskedChat(model="m", problem="2+2?")}


@pytest.mark.parametrize("name", [*NEUTRAL, "tools", "temprature"])
def test_what_cannot_be_obeyed_is_refused(name: str) -> None:
    for value in ("something", 0 in NEUTRAL.get(name, ())):
        with pytest.raises(ApiError, match=f"`{name}` is not supported; leave it out") as caught:
            read_chat({**PLAIN, name: value})
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("changes", "param", "message"),
    [
        ({"n": 0}, "n", "`n`: Expected `int` >= 1"),
        ({"max_tokens": 9, "max_completion_tokens": 8}, "max_tokens", "`max_tokens` and `max_completion_tokens` mean"),
        ({"stop": [""]}, "stop[0]", "`stop[0]`: Expected `str` of length >= 1"),
        ({"messages": []}, "messages", "`messages` has messages by nobody; expected an optional system message"),
        ({"messages": [USER, USER]}, "messages", "`messages` has messages by user, user; expected an optional system message"),
        ({"messages": [{**USER, "role": "tool"}]}, "messages[0].role", "`messages[0].role`: Invalid enum value 'tool'"),
        ({"messages": [{**USER, "content": " "}]}, "messages[0].content", "`messages[0].content`: Expected `str` matching"),
        ({"messages": [{**USER, "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type", "`messages[0].content[0].type`: Inv"),
        ({"messages": [{"role": "user"}]}, "messages[0]", "Object missing required field `content`"),
    ],
)
def test_each_refusal(changes: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_chat({**PLAIN, **changes})
    error = caught.value
    assert error.message.startswith(message)
    assert error.body == {"error": {"message": error.message, "type": "invalid_request_error", "param": param, "code": error.code}}


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b"\xff", b'{"a":' * 99_999, b"[" + b"[]," * 600_000])
def test_a_body_that_is_none(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read_chat(body)
    assert caught.value.code


def test_a_batch_is_told_by_its_lines(tmp_path: Path) -> None:
    lines = [request("a", n=3, seed=7), request("b", messages=[{"role": "system", "content": "Be brief."}, USER]), request("c", answer="4")]
    reading = read_files([write_batch(tmp_path / "batch.jsonl", lines)])
    assert [item for item, _ in reading] == [
        Problem(1, "a", "2+2?", None, settings=ChainSettings(samples=3, seed=7)),
        Problem(2, "b", "2+2?", None, history=(Message("system", "Be brief."),)),
        Problem(3, "c", "2+2?", "4"),
    ]
    assert reading.remarks == [f"{tmp_path}/batch.jsonl: its rows are requests of an OpenAI batch"]


REPLY: dict[str, Any] = {
    "thought": "2 and 2</think>",
    "answer": "\n\nIt is 4.\nOr 5.",
    "cut": False,
    "thought_tokens": 3,
    "input_tokens": {"draft": 10, "target": 20},
    "output_tokens": {"draft": 4, "target": 5},
}
TWO = completion([ChainReply(**REPLY), ChainReply(**REPLY)], name="chatcmpl-1", created=7, model="speccot")


def test_the_choices_of_several_chains_and_their_tokens() -> None:
    message = {"role": "assistant", "content": "It is 4.\nOr 5.", "reasoning_content": "2 and 2", "refusal": None}
    assert json.loads(json.dumps(TWO)) == {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 7, "model": "speccot",
        "choices": [{"index": k, "message": message, "finish_reason": "stop", "logprobs": None} for k in (0, 1)],
        "usage": {
            "prompt_tokens": 60, "completion_tokens": 18, "total_tokens": 78, "completion_tokens_details": {"reasoning_tokens": 6},
            "by_role": {
                "draft": {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28},
                "target": {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50},
            },
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "stop", "content", "reason"),
    [
        ({}, ("\n",), "It is 4.", "stop"),
        ({"cut": True}, (), "It is 4.\nOr 5.", "length"),
        ({"cut": True}, ("5", "4"), "It is ", "stop"),
        ({"cut": None, "answer": None}, ("x",), None, "length"),
        ({"answer": "\n\n"}, (), "", "stop"),
        ({"answer": "5\n\nQ: 6"}, ("\n\n",), "5", "stop"),
    ],
)
def test_why_an_answer_ended(changes: dict[str, Any], stop: tuple[str, ...], content: str | None, reason: str) -> None:
    [choice] = completion([ChainReply(**{**REPLY, **changes})], name="x", created=0, model="m", stop=stop)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (content, reason)
