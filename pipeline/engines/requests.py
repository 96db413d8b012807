"""What several engines do with requests alike. Most of all, which ones every engine refuses before it computes anything,
each with a sentence that says why.

This is what the contract means by a request that cannot be run; an engine adds only what its own memory forbids.
"""

import math
from array import array
from collections.abc import Callable, Sequence

import numpy as np

from pipeline.engine import Request
from pipeline.errors import ContextOverflow, RequestRefused

_MOST_SEED = (1 << 63) - 1


def through(ids: Sequence[int], stop: str, decode: Callable[[Sequence[int]], str]) -> int:
    """How many of `ids` it takes to complete `stop`: token-level speculation may have gone beyond it."""
    count = len(ids)
    while count > 1 and stop in decode(ids[: count - 1]):
        count -= 1
    return count


def check(request: Request, max_model_len: int, vocab_size: int) -> None:
    """Raise `ContextOverflow` or `RequestRefused` if `request` cannot be run."""
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
    """Whether all `ids` are from 0 to below `vocab_size`; for prompts several times as quick as `min` and `max`."""
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
