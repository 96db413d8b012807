"""The body of a chat completion: what is asked in it, and each refusal with its parameter and code."""

from typing import Any

import msgspec
import pytest

from pipeline.data.requests.chat import ASKS_NOTHING, NO_EFFECT, OBEYED, AskedChat, ChainSettings, read_chat
from pipeline.data.requests.errors import ApiError, error_of
from pipeline.graph.prompts import Message

USER = {"role": "user", "content": "2+2?"}
PLAIN: dict[str, Any] = {"model": "m", "messages": [USER]}


def test_a_body_with_all_that_is_obeyed() -> None:
    body = {
        "model": "m",
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]},
            {"role": "assistant", "content": "2", "reasoning_content": "left out", "tool_calls": []},
            USER,
        ],
        "max_completion_tokens": 9,
        "temperature": 1,
        "top_p": 0.5,
        "top_k": -1,
        "min_p": 0.1,
        "seed": -3,
        "n": 2,
        "stop": "\n",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    settings = ChainSettings(max_tokens=9, temperature=1.0, top_p=0.5, top_k=0, min_p=0.1, seed=-3, stop=("\n",), samples=2)
    history = (Message("system", "Be brief."), Message("user", "1+1?"), Message("assistant", "2"))
    asked = AskedChat(model="m", problem="2+2?", history=history, settings=settings, stream=True, include_usage=True)
    assert read_chat(body) == read_chat(msgspec.json.encode(body)) == asked
    assert settings.sampling == {"temperature": 1.0, "top_p": 0.5, "top_k": 0, "min_p": 0.1}


def test_what_asks_for_nothing_is_no_setting() -> None:
    neutral = {name: values[0] if values else None for name, values in ASKS_NOTHING.items()}
    ignored = dict.fromkeys(NO_EFFECT, "x")
    null = dict.fromkeys(OBEYED - PLAIN.keys())
    assert read_chat({**PLAIN, **neutral, **ignored, **null}) == AskedChat(model="m", problem="2+2?")


@pytest.mark.parametrize(
    ("changes", "param", "code", "message"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "unsupported_parameter", "`tools` is not supported; leave it out"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter", "`response_format` is not supported"),
        ({"logprobs": True}, "logprobs", "unsupported_parameter", "`logprobs` is not supported"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter", "`reasoning_effort` is not supported"),
        ({"temprature": 1}, "temprature", "unknown_parameter", "unknown parameter `temprature`"),
        ({"n": 0}, "n", "invalid_value", "`n`: expected `int` >= 1"),
        ({"n": True}, "n", "invalid_type", "`n`: expected `int | null`, got `bool`"),
        ({"temperature": 2.5}, "temperature", "invalid_value", "`temperature`: expected `float` <= 2.0"),
        ({"max_tokens": "9"}, "max_tokens", "invalid_type", "`max_tokens`: expected `int | null`, got `str`"),
        ({"max_tokens": 9, "max_completion_tokens": 8}, "max_tokens", "invalid_value", "`max_tokens` and `max_completion_tokens` mean"),
        ({"stop": [""]}, "stop", "invalid_value", "`stop` has an empty text"),
        ({"stop": ["a"] * 5}, "stop", "invalid_value", "`stop` has 5 texts, more than 4"),
        ({"messages": "2+2?"}, "messages", "invalid_type", "`messages`: expected `array`, got `str`"),
        ({"messages": []}, "messages", "invalid_value", "`messages` is empty; expected an optional system message, then"),
        ({"messages": [USER, USER]}, "messages", "invalid_value", "`messages` are by user, user; expected"),
        ({"messages": [USER] * 65}, "messages", "invalid_value", "`messages` has 65 messages, more than 64"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "invalid_value", "`messages[0].role` is 'tool'; expected"),
        ({"messages": [{**USER, "name": "x"}]}, "messages[0].name", "unsupported_parameter", "`messages[0].name` is not supported"),
        ({"messages": [{"role": "user", "content": " "}]}, "messages[0].content", "invalid_value", "`messages[0].content` is empty"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_type", "`messages[0].content` is null; expected text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "invalid_value",
            "`messages[0].content[0]` is of type 'image_url'; only text is supported",
        ),
    ],
)
def test_each_refusal(changes: dict[str, Any], param: str, code: str, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_chat({**PLAIN, **changes})
    error = caught.value
    assert (error.param, error.code, error.status, error.kind) == (param, code, 400, "invalid_request_error")
    assert error.message.startswith(message)
    told = msgspec.to_builtins(error.body)
    assert told == {"error": {"message": error.message, "type": "invalid_request_error", "param": param, "code": code}}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b"[]", "invalid_type"),
        (b"{}", "missing_required_parameter"),
        (b"\xff", "invalid_json"),
        (b'{"a":' * 99_999, "invalid_json"),
        (b"[" + b"[]," * 600_000, "request_too_large"),
    ],
)
def test_a_body_that_is_none(body: bytes, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_chat(body)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("error_type", "status", "code"),
    [
        ("ContextOverflow", 400, "context_length_exceeded"),
        ("RequestRefused", 400, None),
        ("EngineUnavailable", 500, None),
        (None, 500, None),
    ],
)
def test_what_a_failed_chain_is_told_as(error_type: str | None, status: int, code: str | None) -> None:
    error = error_of(error_type, "why")
    assert (error.status, error.code, error.message) == (status, code, "why")
