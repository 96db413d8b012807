"""Checks requests to engines and their answers, in the same way for every engine. Pure.

`validate_request` is what engines call before they compute anything; `validate_completion` is called on what an engine
answered, before any stage sees it.
"""

import math
from array import array
from collections.abc import Sequence

import numpy as np

from pipeline.engine import Candidate, Completion, Request
from pipeline.errors import ContextOverflow, RequestRefused

_MOST_SEED = (1 << 63) - 1
_ROUNDING = 0.01
"""A log probability may be this much above 0, nats a token: half-precision engines round."""


def validate_request(request: Request, max_model_len: int, vocab_size: int) -> None:
    """Raise an error for a flaw in `request`, before anything is computed: every engine refuses the same requests.

    Raises `ContextOverflow` where the prompt leaves no room for one token, `RequestRefused` for ids outside the vocabulary, options
    and sampling parameters that contradict each other or are out of range. An engine adds only what its own memory forbids.
    """
    flaw = _flaw_in_ids(request, vocab_size) or _flaw_in_options(request) or _flaw_in_sampling(request)
    if flaw:
        raise RequestRefused(f"request {request.request_id!r}: {flaw}")
    if len(request.prompt_ids) + max(len(request.scored_ids), 1) > max_model_len:
        raise ContextOverflow(len(request.prompt_ids) + len(request.scored_ids), max_model_len)


def _flaw_in_ids(request: Request, vocab_size: int) -> str | None:
    if not request.prompt_ids:
        return "its prompt is empty"
    ids = (*request.prompt_ids, *request.option_ids, *request.scored_ids)
    if _all_in(ids, vocab_size):
        return None
    wrong = next(i for i in ids if not 0 <= i < vocab_size)
    return f"token id {wrong} is not in the model's vocabulary of {vocab_size}"


def _all_in(ids: Sequence[int], vocab_size: int) -> bool:
    """Whether all `ids` are from 0 to below `vocab_size`; for long prompts several times as fast as `min` and `max`."""
    try:
        return bool(np.frombuffer(array("I", ids), np.uint32).max() < vocab_size)
    except OverflowError:
        return False


def _flaw_in_options(request: Request) -> str | None:
    if request.option_ids and request.scored_ids:
        return "option_ids and scored_ids exclude each other"
    if request.option_ids and (request.max_tokens != 1 or request.n != 1):
        return f"a choice among option_ids is one token of one candidate, not max_tokens={request.max_tokens}, n={request.n}"
    if request.scored_ids and request.n != 1:
        return f"scored_ids are scored once, not n={request.n} times"
    return None


def _flaw_in_sampling(request: Request) -> str | None:
    if request.n < 1 or request.max_tokens < 1:
        return f"n and max_tokens must be at least 1, not {request.n} and {request.max_tokens}"
    if not 0 <= request.temperature < math.inf or not 0 < request.top_p <= 1:
        return f"temperature={request.temperature} or top_p={request.top_p} is out of range"
    if not 0 <= request.seed <= _MOST_SEED:
        return f"seed {request.seed} is not a number of 63 bits"
    if "" in request.stop:
        return "a stop string is empty"
    return None


def validate_completion(completion: Completion, request: Request, vocab_size: int) -> str | None:
    """Why `completion` is no valid answer to `request`, in one clause; None where it is valid.

    A valid answer has as many candidates and log probabilities as were asked for, ids below `vocab_size`, a choice among the
    options, and log probabilities that are numbers not above 0. A candidate may be without tokens only where the engine says that
    it ended its turn: otherwise a chain could go on forever.
    """
    wanted = 0 if request.scored_ids else request.n
    if len(completion.candidates) != wanted:
        return f"it has {_many(len(completion.candidates), 'candidate')}, not {wanted}"
    for candidate in completion.candidates:
        if flaw := _flaw_in_candidate(candidate, vocab_size):
            return flaw
    if request.option_ids and (flaw := _flaw_in_choice(completion.candidates[0], request.option_ids)):
        return flaw
    return _flaw_in_logprobs(completion.option_logprobs, len(request.option_ids), "option") or _flaw_in_logprobs(
        completion.scored_logprobs, len(request.scored_ids), "scored token"
    )


def _flaw_in_candidate(candidate: Candidate, vocab_size: int) -> str | None:
    ids, total = candidate.ids, candidate.cumulative_logprob
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(i for i in ids if not 0 <= i < vocab_size)
        return f"token id {wrong} is not in the model's vocabulary of {vocab_size}"
    if not ids and (candidate.text or candidate.finish_reason != "stop" or candidate.stop_reason is not None):
        return "a candidate has no tokens and did not end its turn"
    if total is not None and not total <= _ROUNDING * max(1, len(ids)):
        return f"{total} is no log probability"
    return None


def _flaw_in_choice(candidate: Candidate, options: Sequence[int]) -> str | None:
    if len(candidate.ids) != 1 or candidate.ids[0] not in options:
        return f"it chose {list(candidate.ids)}, which is none of the options"
    return None


def _flaw_in_logprobs(logprobs: Sequence[float], wanted: int, what: str) -> str | None:
    if len(logprobs) != wanted:
        return f"it has {_many(len(logprobs), 'log probability', 'log probabilities')} for {_many(wanted, what)}"
    wrong = [logprob for logprob in logprobs if not logprob <= _ROUNDING]
    return f"{wrong[0]} is no log probability" if wrong else None


def _many(count: int, one: str, several: str | None = None) -> str:
    """A count with its noun, `1 candidate` or `2 candidates`."""
    return f"{count} {one if count == 1 else several or one + 's'}"
