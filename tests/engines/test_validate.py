"""Which requests are computed and which completions are answers: what the contract promises, and nothing else."""

import math
import re
from typing import Any

import pytest
from msgspec import structs

from pipeline.engine import Candidate, Completion, Request, Usage
from pipeline.engines.validate import validate_completion, validate_request
from pipeline.errors import ContextOverflow, RequestRefused


def said(*ids: Any, text: Any = "x", **fields: Any) -> Candidate:
    defaults: dict[str, Any] = {"cumulative_logprob": -1.0, "finish_reason": "stop", "stop_reason": None}
    return Candidate(ids=ids, text=text, **defaults | fields)


def flaw(asked: dict[str, Any], **given: Any) -> str | None:
    request = Request(**{"request_id": "r", "prompt_ids": [1], "max_tokens": 4} | asked)
    return validate_completion(Completion(**{"candidates": (), "usage": Usage(input_tokens=1)} | given), request, vocab_size=10)


TWO = {"n": 2}
CHOICE = {"option_ids": (3, 4), "max_tokens": 1}
OUT_OF_RANGE = {"max_tokens": 0, "n": 0, "temperature": -1.0, "top_p": 0.0, "top_k": -1, "min_p": 1.5, "seed": 1 << 63, "stop": ("",)}


@pytest.mark.parametrize(
    ("asked", "given", "says"),
    [
        (TWO, {"candidates": (said(1), said(text=""))}, None),
        (CHOICE, {"candidates": (said(4),), "option_logprobs": (-math.inf, 0.0)}, None),
        ({"max_tokens": 300}, {"candidates": (said(*[9] * 300),)}, None),
        (TWO, {"candidates": (said(1),)}, "it has 1 candidates, not 2"),
        ({"max_tokens": 200}, {"candidates": (said(*[9] * 199, 10),)}, "token id 10 is not in the model's vocabulary of 10"),
        (TWO, {"candidates": (said(1), said(text="", finish_reason="length"))}, "a candidate has no tokens and did not end its turn"),
        (TWO, {"candidates": (said(1), said(1, 2, 3, 4, 5))}, "a candidate has 5 tokens, more than max_tokens=4"),
        (TWO, {"candidates": (said(1), said(1, finish_reason="error"))}, "it ended a candidate with finish reason 'error'"),
        (TWO, {"candidates": (said(1), said(1, cumulative_logprob=math.nan))}, "nan is not a log probability"),
        (CHOICE, {"candidates": (said(5),), "option_logprobs": (-1.0, -1.0)}, "it chose [5], which is none of the options"),
        (CHOICE, {"candidates": (said(3),), "option_logprobs": (-1.0,)}, "its option log probabilities are 1, not 2"),
        (CHOICE, {"candidates": (said(3),), "option_logprobs": (-1.0, math.inf)}, "inf is not a log probability"),
        ({"logprobs": True}, {"candidates": (said(1),)}, "a candidate lacks the requested log probabilities"),
        ({}, {"candidates": (said(1, text=5),)}, "it holds a value of a wrong type: expected text, got 'int'"),
    ],
)
def test_what_is_no_answer_is_told_in_one_clause(asked: dict[str, Any], given: dict[str, Any], says: str | None) -> None:
    assert flaw(asked, **given) == says


@pytest.mark.parametrize(
    ("flaw", "says"),
    [
        ({"prompt_ids": []}, "its prompt is empty"),
        ({"prompt_ids": [1, 1 << 40]}, f"token id {1 << 40} is not in the model's vocabulary"),
        ({"prompt_ids": [1, -1]}, "token id -1 is not in the model's vocabulary"),
        ({"option_ids": (1, 2), "max_tokens": 1, "n": 2}, "a choice is of one token, not max_tokens=1, n=2"),
        *(({name: value}, f"{name}={value!r} is out of range") for name, value in OUT_OF_RANGE.items()),
        ({"adapter": "selection"}, "the engine has no adapter 'selection', but other"),
    ],
    ids=str,
)
def test_what_no_engine_can_run_is_refused_in_one_sentence(flaw: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestRefused, match=rf"^request 'r': [^\n]*{re.escape(says)}[^\n]*$"):
        validate_request(Request(**{"request_id": "r", "prompt_ids": [1], "max_tokens": 4} | flaw), 16, 10, ("other",))


def test_a_prompt_leaves_room_for_one_token_and_each_adapter_has_another_digest() -> None:
    request = Request(request_id="r", prompt_ids=[1] * 9, max_tokens=1, adapter="selection")
    validate_request(request, 10, 16, ("selection",))
    with pytest.raises(ContextOverflow):
        validate_request(request, 9, 16, ("selection",))
    assert len({structs.replace(request, adapter=adapter).digest() for adapter in (None, "selection", "other")}) == 3
