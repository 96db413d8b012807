"""Checks requests to engines and their answers, in the same way for every engine. Pure.

`validate_request` is what engines call before they compute anything; `validate_completion` is called on what an engine
answered, before any stage sees it.
"""

import math
from array import array
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import get_args

import numpy as np

from pipeline.engine import Candidate, Completion, FinishReason, Request, packed
from pipeline.errors import ContextOverflow, RequestRefused

_FINISH_REASONS = get_args(FinishReason)
_MAX_SEED = (1 << 63) - 1
_ROUNDING = 0.01
"""A log probability may be this much above 0, nats a token: half-precision engines round."""
_MANY_IDS = 128
"""From this many on, numpy finds the largest one faster."""


def validate_request(request: Request, max_model_len: int, vocab_size: int, adapters: Collection[str] | None = ()) -> None:
    """Raise an error for a flaw in `request`, before anything is computed: every engine refuses the same requests.

    Raises `ContextOverflow` where the prompt leaves no room for one token, `RequestRefused` for ids outside
    the vocabulary, options and sampling parameters that contradict each other or are out of range, and an adapter that is none of
    `adapters` (None: any is). An engine adds only what its own memory forbids.
    """
    flaw = None if request.prompt_ids else "its prompt is empty"
    flaw = flaw or _flaw_in_ids(request.prompt_ids, vocab_size) or _flaw_in_ids(request.option_ids, vocab_size)
    if flaw := flaw or _flaw_in_sampling(request) or _flaw_in_adapter(request, adapters):
        raise RequestRefused(f"request {request.request_id!r}: {flaw}")
    if len(request.prompt_ids) >= max_model_len:
        raise ContextOverflow(len(request.prompt_ids), max_model_len)


def _flaw_in_ids(ids: Sequence[int], vocab_size: int) -> str | None:
    """The first id not from 0 to below `vocab_size`; raises `TypeError` where one is no integer."""
    with suppress(OverflowError):
        numbers = packed(ids)
        if not ids or (max(ids) if len(numbers) < _MANY_IDS else np.frombuffer(numbers, np.uint32).max()) < vocab_size:
            return None
    wrong = next(i for i in ids if not 0 <= i < vocab_size)
    return f"token id {wrong} is not in the model's vocabulary of {vocab_size}"


def _flaw_in_sampling(request: Request) -> str | None:
    if request.option_ids and (request.max_tokens, request.n) != (1, 1):
        return f"a choice is of one token, not max_tokens={request.max_tokens}, n={request.n}"
    fits = {
        "n": request.n >= 1,
        "max_tokens": request.max_tokens >= 1,
        "temperature": 0 <= request.temperature < math.inf,
        "top_p": 0 < request.top_p <= 1,
        "top_k": request.top_k >= 0,
        "min_p": 0 <= request.min_p <= 1,
        "seed": 0 <= request.seed <= _MAX_SEED,
        "stop": "" not in request.stop,
    }
    wrong = next((name for name, fit in fits.items() if not fit), None)
    return wrong and f"{wrong}={getattr(request, wrong)!r} is out of range"


def _flaw_in_adapter(request: Request, adapters: Collection[str] | None) -> str | None:
    if request.adapter is None or adapters is None or request.adapter in adapters:
        return None
    return f"the engine has no adapter {request.adapter!r}" + (f", but {', '.join(adapters)}" if adapters else "")


def validate_completion(completion: Completion, request: Request, vocab_size: int) -> str | None:
    """Why `completion` is no valid answer to `request`, in one clause; None where it is valid.

    A valid answer has as many candidates and log probabilities as were asked for, none of more than `max_tokens` tokens, ids below
    `vocab_size`, a choice among the options, and log probabilities that are numbers not above 0. A candidate may be without tokens only
    where the engine says that it ended its turn, or that it sampled tokens up to their limit which it does not show.
    """
    try:
        return _flaw_in_completion(completion, request, vocab_size)
    except (TypeError, ValueError, OverflowError) as error:  # of an engine that is no part of this package
        return f"it holds a value of a wrong type: {error}"


def _flaw_in_completion(completion: Completion, request: Request, vocab_size: int) -> str | None:
    if len(completion.candidates) != request.n:
        return f"it has {len(completion.candidates)} candidates, not {request.n}"
    for candidate in completion.candidates:
        if flaw := _flaw_in_candidate(candidate, request, vocab_size, completion.usage.output_tokens):
            return flaw
    chosen = completion.candidates[0].ids if request.option_ids else ()
    if request.option_ids and (len(chosen) != 1 or chosen[0] not in request.option_ids):
        return f"it chose {list(chosen)}, which is none of the options"
    logprobs = completion.option_logprobs
    if len(logprobs) != len(request.option_ids):
        return f"its option log probabilities are {len(logprobs)}, not {len(request.option_ids)}"
    wrong = next((logprob for logprob in array("d", logprobs) if not logprob <= _ROUNDING), None)
    return None if wrong is None else f"{wrong} is not a log probability"


def _flaw_in_candidate(candidate: Candidate, request: Request, vocab_size: int, sampled: int) -> str | None:
    ids, total, max_tokens = candidate.ids, candidate.cumulative_logprob, request.max_tokens
    if flaw := _flaw_in_ids(ids, vocab_size):
        return flaw
    if len(ids) > max_tokens:
        return f"a candidate has {len(ids)} tokens, more than max_tokens={max_tokens}"
    if candidate.finish_reason not in _FINISH_REASONS:
        return f"it ended a candidate with finish reason {candidate.finish_reason!r}"
    unshown = candidate.finish_reason == "length" and sampled
    if not ids and (candidate.text or candidate.stop_reason is not None or not (candidate.ended or unshown)):
        return "a candidate has no tokens and did not end its turn"
    if total is not None and not total <= _ROUNDING * max(1, len(ids)):
        return f"{total} is not a log probability"
    if candidate.confidence is not None and (flaw := candidate.confidence.flaw):
        return flaw
    if request.logprobs and candidate.confidence is None and ids and not request.option_ids:
        return "a candidate lacks the requested log probabilities"
    if not isinstance(candidate.text, str):
        raise TypeError(f"expected text, got {type(candidate.text).__name__!r}")
    return None
