"""Which completions are answers: what the contract promises, and nothing else."""

import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from pipeline.engine import Candidate, Completion, Request, Timing, Usage
from pipeline.engines.validate import is_another_model, validate_completion, validate_request
from pipeline.errors import ContextOverflow

NAN = math.nan


def said(*ids: Any, text: Any = "x", **fields: Any) -> Candidate:
    defaults: dict[str, Any] = {"cumulative_logprob": -1.0, "finish_reason": "stop", "stop_reason": None}
    return Candidate(ids=ids, text=text, **defaults | fields)


def flaw(asked: dict[str, Any], **given: Any) -> str | None:
    request = Request(**{"request_id": "r", "prompt_ids": [1], "max_tokens": 4} | asked)
    return validate_completion(Completion(**{"candidates": (), "usage": Usage(input_tokens=1)} | given), request, vocab_size=10)


TWO = {"n": 2}
CHOICE = {"option_ids": (3, 4), "max_tokens": 1}
SCORING = {"scored_ids": (3, 4)}


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (TWO, {"candidates": (said(1), said(9))}),
        (TWO, {"candidates": (said(1), said(text=""))}),
        (TWO, {"candidates": (said(1, cumulative_logprob=None), said(1, cumulative_logprob=0.004))}),
        (CHOICE, {"candidates": (said(4),), "option_logprobs": (-math.inf, 0.0)}),
        (SCORING, {"scored_logprobs": (-math.inf, -2.0)}),
        (TWO, {"candidates": (said(1, 2, 3, 4),) * 2, "usage": Usage(input_tokens=160, cached_input_tokens=160, output_tokens=8)}),
        (TWO, {"candidates": (said(1),) * 2, "timing": Timing(queue_time_s=-5e-324, decode_time_s=3e8)}),
        (TWO, {"candidates": (said(1),) * 2, "usage": Usage(input_tokens=np.int64(1), output_tokens=np.int64(2))}),
        ({"max_tokens": 300}, {"candidates": (said(*[9] * 300),)}),
    ],
)
def test_an_answer_is_one(asked: dict[str, Any], given: dict[str, Any]) -> None:
    assert flaw(asked, **given) is None


@pytest.mark.parametrize(
    ("asked", "given", "says"),
    [
        (TWO, {}, "it has 0 candidates, not 2"),
        (TWO, {"candidates": (said(1),)}, "it has 1 candidates, not 2"),
        (TWO, {"candidates": (said(1), said(1, 10))}, "token id 10 is not in the model's vocabulary of 10"),
        (TWO, {"candidates": (said(1), said())}, "a candidate has no tokens and did not end its turn"),
        (TWO, {"candidates": (said(1), said(text="", finish_reason="length"))}, "a candidate has no tokens and did not end its turn"),
        (TWO, {"candidates": (said(1), said(1, cumulative_logprob=NAN))}, "nan is not a log probability"),
        (TWO, {"candidates": (said(1), said(1)), "option_logprobs": (0.0,)}, "its option log probabilities are 1, not 0"),
        (CHOICE, {"candidates": (said(5),), "option_logprobs": (-1.0, -1.0)}, "it chose [5], which is none of the options"),
        (CHOICE, {"candidates": (said(3),), "option_logprobs": (-1.0,)}, "its option log probabilities are 1, not 2"),
        (CHOICE, {"candidates": (said(3),), "option_logprobs": (-1.0, math.inf)}, "inf is not a log probability"),
        (SCORING, {"candidates": (said(3),), "scored_logprobs": (-1.0, -1.0)}, "it has 1 candidates, not 0"),
        (SCORING, {"scored_logprobs": (-1.0,) * 3}, "its scored log probabilities are 3, not 2"),
        (TWO, {"candidates": (said(1), said(1, 1 << 80))}, "token id 1.20892582e+24 is not in the model's vocabulary of 10"),
        (TWO, {"candidates": (said(1), said(1, 2, 3, 4, 5))}, "a candidate has 5 tokens, more than max_tokens=4"),
        ({"max_tokens": 200}, {"candidates": (said(*[9] * 199, 10),)}, "token id 10 is not in the model's vocabulary of 10"),
        (TWO, {"candidates": (said(1), said(1, finish_reason="error"))}, "it ended a candidate with finish reason 'error'"),
    ],
)
def test_what_is_no_answer_is_told_in_one_clause(asked: dict[str, Any], given: dict[str, Any], says: str) -> None:
    assert flaw(asked, **given) == says


PLAIN: dict[str, Any] = {"candidates": (said(1),)}


@pytest.mark.parametrize(
    ("usage", "says"),
    [
        ({"input_tokens": -5}, "it counts -5 prompt tokens, 0 of them cached, for a prompt of 1"),
        ({"input_tokens": 1, "cached_input_tokens": 2}, "it counts 1 prompt tokens, 2 of them cached, for a prompt of 1"),
        ({"input_tokens": 81}, "it counts 81 prompt tokens, 0 of them cached, for a prompt of 1"),
        ({"input_tokens": 10**30}, "it counts 1e+30 prompt tokens, 0 of them cached, for a prompt of 1"),
        ({"input_tokens": 1, "output_tokens": -1}, "it counts -1 sampled tokens where 4 may be sampled"),
        ({"input_tokens": 1, "output_tokens": 6}, "it counts 6 sampled tokens where 4 may be sampled"),
    ],
)
def test_counts_that_cannot_be_true_are_no_answer(usage: dict[str, int], says: str) -> None:
    assert flaw({}, **PLAIN, usage=Usage(**usage)) == says


@pytest.mark.parametrize("seconds", [-1.0, NAN, math.inf, 1e300])
@pytest.mark.parametrize("field", ["queue_time_s", "prefill_time_s", "decode_time_s", "time_to_first_token_s"])
def test_times_that_cannot_be_true_are_no_answer(field: str, seconds: float) -> None:
    assert flaw({}, **PLAIN, timing=Timing(**{field: seconds})) == f"{seconds} s is not a valid time"


@pytest.mark.parametrize(
    "given",
    [
        {"candidates": (said(1.5),)},
        {"candidates": (said(1, text=5),)},
        {"candidates": (said(1, cumulative_logprob="x"),)},
        {**PLAIN, "usage": Usage(input_tokens=1.5)},
        {**PLAIN, "timing": Timing(queue_time_s="1")},
    ],
)
def test_values_of_wrong_types_are_no_answer(given: Any) -> None:
    assert str(flaw({}, **given)).startswith("it holds a value of a wrong type: ")


def test_a_log_probability_beyond_all_numbers_is_of_a_wrong_type() -> None:
    given: Any = (-(10**400), -1.0)
    assert str(flaw(CHOICE, candidates=(said(3),), option_logprobs=given)).startswith("it holds a value of a wrong type: ")


@pytest.mark.parametrize(
    ("prompt", "scored", "fits"), [(9, 0, True), (10, 0, False), (4, 5, True), (5, 5, False), (9, 1, False), (9, 2, False)]
)
def test_a_prompt_leaves_room_for_one_token_behind_all_that_is_read(prompt: int, scored: int, fits: bool) -> None:
    request = Request(request_id="r", prompt_ids=[1] * prompt, max_tokens=1, scored_ids=(1,) * scored)
    with nullcontext() if fits else pytest.raises(ContextOverflow):
        validate_request(request, 10, 100)


@pytest.mark.parametrize(
    ("asked", "answered", "another"),
    [
        *((asked, answered, False) for asked, answered in [("a", None), ("a", "a"), ("A", "a"), ("gpt-4o", "gpt-4o-2024-08-06")]),
        *((asked, answered, False) for asked, answered in [("openai/gpt-4o", "gpt-4o"), ("target", "/models/target"), ("a", "a:latest")]),
        *((asked, answered, False) for asked, answered in [("mistral-large-latest", "mistral-large-2411"), ("a/b:free", "a/b")]),
        *((asked, answered, True) for asked, answered in [("gpt-4o", "gpt-4o-mini"), ("gpt-4o-mini", "gpt-4o"), ("qwen3:8b", "qwen3:4b")]),
        *((asked, answered, True) for asked, answered in [("a/x", "b/x"), ("target", "draft"), ("qwen2.5-7b", "qwen2.5-72b")]),
    ],
)
def test_names_of_models(asked: str, answered: str | None, another: bool) -> None:
    assert is_another_model(asked, answered) is another
