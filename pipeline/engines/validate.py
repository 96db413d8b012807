"""Which completions are no answer to their request, whatever engine gave them. Pure.

A request, what came for it and the size of the model's vocabulary enter; a clause leaves that says what is wrong, if
anything is. What a stage makes of an answer is the stage's business; no stage sees one that is none.
"""

from collections.abc import Sequence

from pipeline.engine import Candidate, Completion, Request

_ROUNDING = 0.01
"""A log probability may be this much above 0, nats a token: half-precision engines round."""


def validate_completion(completion: Completion, request: Request, vocab_size: int) -> str | None:
    """Why `completion` is no answer to `request`, in one clause; None where it is one.

    A candidate without tokens is one only where the engine says that it ended its turn: anything else would go on for ever.
    """
    wanted = 0 if request.scored_ids else request.n
    if len(completion.candidates) != wanted:
        return f"it has {_many(len(completion.candidates), 'candidate')}, not {wanted}"
    for candidate in completion.candidates:
        if flaw := _flaw_in_candidate(candidate, vocab_size) or _flaw_in_choice(candidate, request.option_ids):
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
    if options and (len(candidate.ids) != 1 or candidate.ids[0] not in options):
        return f"it chose {list(candidate.ids)}, which is none of the options"
    return None


def _flaw_in_logprobs(logprobs: Sequence[float], wanted: int, what: str) -> str | None:
    if len(logprobs) != wanted:
        return f"it has {_many(len(logprobs), 'log probability', 'log probabilities')} for {_many(wanted, what)}"
    wrong = next((logprob for logprob in logprobs if not logprob <= _ROUNDING), None)
    return None if wrong is None else f"{wrong} is no log probability"


def _many(count: int, one: str, several: str | None = None) -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"
