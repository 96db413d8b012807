"""Which completions are answers: what the contract promises, and nothing else."""

import math
from typing import Any

import pytest

from pipeline.engine import Candidate, Completion, Request, Usage
from pipeline.engines.validate import validate_completion

NAN = math.nan


def said(*ids: int, text: str = "x", **fields: Any) -> Candidate:
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
    ],
)
def test_an_answer_is_one(asked: dict[str, Any], given: dict[str, Any]) -> None:
    assert flaw(asked, **given) is None


@pytest.mark.parametrize(
    ("asked", "given", "says"),
    [
        (TWO, {}, "it has 0 candidates, not 2"),
        (TWO, {"candidates": (said(1),)}, "it has 1 candidate, not 2"),
        (TWO, {"candidates": (said(1),) * 3}, "it has 3 candidates, not 2"),
        (TWO, {"candidates": (said(1), said(1, 10))}, "token id 10 is not in the model's vocabulary of 10"),
        (TWO, {"candidates": (said(1), said(-1))}, "token id -1 is not in the model's vocabulary of 10"),
        (TWO, {"candidates": (said(1), said())}, "a candidate has no tokens and did not end its turn"),
        (TWO, {"candidates": (said(1), said(text="", finish_reason="length"))}, "a candidate has no tokens and did not end its turn"),
        (TWO, {"candidates": (said(1), said(text="", stop_reason="\n\n"))}, "a candidate has no tokens and did not end its turn"),
        (TWO, {"candidates": (said(1), said(1, cumulative_logprob=NAN))}, "nan is no log probability"),
        (TWO, {"candidates": (said(1), said(1)), "option_logprobs": (0.0,)}, "it has 1 log probability for 0 options"),
        (CHOICE, {"option_logprobs": (-1.0, -1.0)}, "it has 0 candidates, not 1"),
        (CHOICE, {"candidates": (said(5),), "option_logprobs": (-1.0, -1.0)}, "it chose [5], which is none of the options"),
        (CHOICE, {"candidates": (said(text=""),), "option_logprobs": (-1.0, -1.0)}, "it chose [], which is none of the options"),
        (CHOICE, {"candidates": (said(3, 4),), "option_logprobs": (-1.0, -1.0)}, "it chose [3, 4], which is none of the options"),
        (CHOICE, {"candidates": (said(3),), "option_logprobs": (-1.0,)}, "it has 1 log probability for 2 options"),
        (CHOICE, {"candidates": (said(3),), "option_logprobs": (-1.0, NAN)}, "nan is no log probability"),
        (CHOICE, {"candidates": (said(3),), "option_logprobs": (-1.0, math.inf)}, "inf is no log probability"),
        (SCORING, {"candidates": (said(3),), "scored_logprobs": (-1.0, -1.0)}, "it has 1 candidate, not 0"),
        (SCORING, {"scored_logprobs": (-1.0,) * 3}, "it has 3 log probabilities for 2 scored tokens"),
        (SCORING, {"scored_logprobs": (-1.0, NAN)}, "nan is no log probability"),
    ],
)
def test_what_is_no_answer_is_told_in_one_clause(asked: dict[str, Any], given: dict[str, Any], says: str) -> None:
    assert flaw(asked, **given) == says
