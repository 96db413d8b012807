"""The answer to a request: choices, why each ended, and the tokens by role beside their total."""

from typing import Any

import msgspec
import pytest

from pipeline.data.requests.reply import ChainReply, completion

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
    assert msgspec.to_builtins(TWO) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 7,
        "model": "speccot",
        "choices": [{"index": k, "message": message, "finish_reason": "stop", "logprobs": None} for k in (0, 1)],
        "usage": {
            "prompt_tokens": 60,
            "completion_tokens": 18,
            "total_tokens": 78,
            "completion_tokens_details": {"reasoning_tokens": 6},
            "by_role": {
                "draft": {"prompt_tokens": 20, "completion_tokens": 8, "total_tokens": 28},
                "target": {"prompt_tokens": 40, "completion_tokens": 10, "total_tokens": 50},
            },
        },
    }


@pytest.mark.slow
def test_the_types_of_the_openai_package_read_it() -> None:
    from openai.types.chat import ChatCompletion

    read = ChatCompletion.model_validate_json(msgspec.json.encode(TWO), strict=True)
    assert read.choices[1].message.model_extra == {"reasoning_content": "2 and 2"}
    assert read.usage is not None
    assert (read.usage.total_tokens, read.usage.model_extra) == (78, {"by_role": msgspec.to_builtins(TWO.usage.by_role)})


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
    [choice] = completion([ChainReply(**{**REPLY, **changes})], name="x", created=0, model="m", stop=stop).choices
    assert (choice.message.content, choice.finish_reason) == (content, reason)
