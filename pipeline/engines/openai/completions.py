"""Makes a `Completion` of the answers of completions endpoints (vLLM, SGLang, llama.cpp and hosted ones).

`ResponseBody`s enter, a `Completion` leaves, or `NoAnswer` says what is wrong: fewer candidates than asked for, log probabilities that are
missing, a prompt of another length. What every engine's answer must be, `pipeline.engines.validate` checks afterwards. Pure.
"""

import math
from collections.abc import Mapping, Sequence

from msgspec import UNSET, UnsetType, structs

from pipeline.confidence import Confidence, confidence_of
from pipeline.engine import Candidate, Completion, FinishReason, Request, Timing, Tokenizer, Usage
from pipeline.engines.openai.answers import CompletionChoice, ResponseBody, Stop, UsageBody
from pipeline.engines.openai.client import NoAnswer, read_json
from pipeline.engines.openai.replies import finish_of
from pipeline.engines.openai.request import Capabilities, answer_ids, candidates_asked, prompt_of, stop_texts
from pipeline.engines.tokenizer import count_through_stop
from pipeline.engines.validate import flaw_in_usage

AGREEING = 256
"""One in `AGREEING` tokens may be counted differently than here."""
_MIN_LOGPROB, _MAX_LOGPROB = -9998.0, 0.01
"""A log probability below the first means minus infinity: vLLM writes -9999, because JSON has no infinity. One may be above 0 as much as
the second: half-precision servers round."""
_ID_LABEL, _ID_DIGITS = "token_id:", 10
"""vLLM's label of a token, and most digits of the number after it."""


def completion_of(request: Request, answers: Sequence[ResponseBody], can: Capabilities, tokenizer: Tokenizer) -> Completion:
    """The completion that `answers`, one for each body of `request`, hold; raises `NoAnswer`."""
    asked = candidates_asked(request)
    stated = [answer.counted for answer in answers]
    # Candidates that were computed in several answers at once have no times of their own.
    timing, model = answers[0].timing if len(answers) == 1 else Timing(), answers[0].answered_by
    choices = [choice for answer in answers for choice in _choices(answer, asked // len(answers))]
    if can.prompts == "ids":
        _check_prompts(request, [answer.choices[0] for answer in answers])
    _check_counts(request, stated, can, tokenizer, asked // len(answers))
    if request.scored_ids:
        scored = _scored(request, choices[0])
        return Completion(candidates=(), scored_logprobs=scored, usage=usage_of(request, stated, 0), model=model)
    options: tuple[float, ...] = ()
    if request.option_ids:
        chosen, options = _choice(request, choices[0], can, tokenizer)
        candidates = [chosen]
    else:
        read = _candidate_of_ids if can.returns_ids else _candidate_of_text
        candidates = [read(request, choice, can, tokenizer) for choice in choices]
    usage = usage_of(request, stated, sum(len(candidate.ids) for candidate in candidates))
    candidates *= request.n // asked
    return Completion(candidates=tuple(candidates), option_logprobs=options, usage=usage, timing=timing, model=model)


def _malformed(words: str) -> NoAnswer:
    return NoAnswer("malformed", words)


def _choices(answer: ResponseBody, asked: int) -> list[CompletionChoice]:
    """The `asked` choices in the order of their index, each of them ended as it should."""
    if len(answer.choices) != asked:
        raise _malformed(f"has {len(answer.choices)} choices, not {asked}")
    choices = sorted(answer.choices, key=lambda choice: choice.index or 0)
    if [choice.index or 0 for choice in choices] != list(range(asked)):
        raise _malformed("numbers its choices in an unexpected way")
    return [structs.replace(choice, finish_reason=finish_of(choice.finish_reason, choice.error)) for choice in choices]


# The prompt that was read, and the counts of tokens.


def _check_prompts(request: Request, choices: Sequence[CompletionChoice]) -> None:
    """Raise `NoAnswer` where a server repeats a prompt other than that of `request`: a proxy that mixes connections up gives the answers
    to other requests."""
    for choice in choices:
        repeated = read_json(choice.prompt_token_ids, list[int])
        if repeated is not None and repeated != [*request.prompt_ids, *request.scored_ids]:
            raise _malformed("belongs to another prompt")


def _check_counts(request: Request, stated: Sequence[UsageBody], can: Capabilities, tokenizer: Tokenizer, copies: int) -> None:
    """Raise `NoAnswer` where a server states that it has read another number of tokens than it was sent."""
    counts = {one.prompt_tokens for one in stated if one.prompt_tokens}
    prompt = prompt_of(request, can, tokenizer) if counts else []
    sent = len(prompt) if isinstance(prompt, list) else len(tokenizer.encode(prompt)) + can.adds_bos
    for count in counts:
        if flaw := flaw_in_prompt_tokens(sent, count, copies, exact=can.prompts == "ids"):
            raise NoAnswer("withheld", flaw, excess=count - sent)


def flaw_in_prompt_tokens(sent: int, stated: int, copies: int = 1, *, exact: bool) -> str | None:
    """The flaw of a prompt of `sent` tokens of which a server has read as many as are `stated`, with both numbers, as the end of a
    sentence about the server; None where nothing is.

    Some servers count the prompt once for each of its `copies`. Where it was sent as a text (not `exact`), one token in `AGREEING` may be
    counted otherwise: servers' own tokenizers differ from that of the model's files in rare characters.
    """
    if any(abs(stated - sent * each) <= (0 if exact else sent * each // AGREEING) for each in (1, copies)):
        return None
    fewer = "it truncates prompts" if stated < sent else "it wraps prompts in a chat template or adds special tokens"
    return f"reports {stated:,} tokens for a prompt of {sent:,}: {fewer}, or `tokenizer` does not match its model"


def usage_of(request: Request, stated: Sequence[UsageBody], sampled: int) -> Usage:
    """The counts that the server stated with its answers to `request`; where it states none, or some that cannot be true, those of the
    request and of the `sampled` tokens.

    The prompt counts once, however often it was sent, and the answer that had the least of it in the cache says what was there before all
    of them. No server reads its cache for a scoring; for several candidates in one answer vLLM states what the last of them found, which
    the others had just computed.
    """
    given = len(request.prompt_ids) + len(request.scored_ids)
    own = Usage(input_tokens=given, output_tokens=0 if request.scored_ids else sampled)
    read = stated[0].prompt_tokens or given
    counted = [one.completion_tokens for one in stated if one.completion_tokens is not None]
    cached = None
    states_what_was_cached = not request.scored_ids and candidates_asked(request) == len(stated)
    if states_what_was_cached and any(one.cached_tokens is not None for one in stated):
        cached = min(read, *(one.cached_tokens or 0 for one in stated))
    usage = Usage(
        input_tokens=read,
        cached_input_tokens=cached,
        output_tokens=own.output_tokens if request.scored_ids or len(counted) < len(stated) else sum(counted),
    )
    return own if usage.output_tokens < own.output_tokens or flaw_in_usage(usage, request) else usage


# Candidates of servers that return token ids.


def _candidate_of_ids(request: Request, choice: CompletionChoice, can: Capabilities, tokenizer: Tokenizer) -> Candidate:
    if (ids := choice.token_ids) is None:
        raise _malformed("has no token ids")
    if len(ids) > request.max_tokens:
        raise _malformed(f"has a candidate of {len(ids)} tokens, more than max_tokens={request.max_tokens}")
    if not ids and choice.finish_reason == "length":
        raise _malformed("has a candidate without tokens")
    kept, finish, stop = _end_of_ids(request, choice, ids, tokenizer)
    logprobs = _sampled_logprobs(choice)
    asked = request.logprobs and can.top_logprobs
    if asked and len(logprobs) != len(ids):
        raise _malformed(f"has log probabilities for {len(logprobs)} tokens, not {len(ids)}")
    # An end of sequence was sampled, though it is not kept; what token-level speculation wrote beyond a stop string was not.
    logprobs = logprobs[: kept if isinstance(stop, str) else len(ids)]
    return Candidate(
        ids=ids[:kept],
        text=tokenizer.decode(ids[:kept]),
        cumulative_logprob=math.fsum(logprobs) if asked else None,
        finish_reason=finish,
        stop_reason=stop,
        confidence=_confidence(choice, logprobs) if asked else None,
    )


def _end_of_ids(request: Request, choice: CompletionChoice, ids: Sequence[int], tokenizer: Tokenizer) -> tuple[int, FinishReason, Stop]:
    """The number of `ids` to keep, and what ended them."""
    if choice.finish_reason == "length":
        return len(ids), "length", None
    if ids and ids[-1] in request.stop_ids:
        return len(ids), "stop", ids[-1]
    reported = choice.reported_stop
    if not isinstance(reported, str):
        return max(0, len(ids) - 1), "stop", None
    if reported not in request.stop:
        raise _malformed(f"ended a candidate at {reported!r}, which was not a requested stop string")
    return count_through_stop(ids, reported, tokenizer.decode), "stop", reported


# Candidates of servers that return text.


def _candidate_of_text(request: Request, choice: CompletionChoice, can: Capabilities, tokenizer: Tokenizer) -> Candidate:
    if choice.text is None:
        raise _malformed("has no text")
    text, finish, stop = _end_of_text(request, choice, choice.text, can, tokenizer)
    logprobs = _sampled_logprobs(choice)
    asked = request.logprobs and can.top_logprobs
    if asked and text and not logprobs:
        raise _malformed("lacks the requested log probabilities")
    ids = answer_ids(tokenizer, text)
    if len(ids) > request.max_tokens:  # not every server keeps to it
        ids = ids[: request.max_tokens]
        text, finish, stop, logprobs = tokenizer.decode(ids), "length", None, logprobs[: request.max_tokens]
    return Candidate(
        ids=ids,
        text=text,
        cumulative_logprob=math.fsum(logprobs) if asked else None,
        finish_reason=finish,
        stop_reason=stop,
        confidence=_confidence(choice, logprobs) if asked else None,
    )


def _end_of_text(
    request: Request, choice: CompletionChoice, text: str, can: Capabilities, tokenizer: Tokenizer
) -> tuple[str, FinishReason, Stop]:
    """The text up to and including its first stop, which servers trim or leave, and what ended it."""
    # The stop reason of each text that can end a candidate; None for an end of sequence that is no stop id.
    stops: dict[str, Stop] = {tokenizer.decode([token]): None for token in tokenizer.eos_ids}
    stops |= {tokenizer.decode([token]): token for token in request.stop_ids} | {stop: stop for stop in request.stop}
    if found := [(start, start + len(stop), reason) for stop, reason in stops.items() if (start := text.find(stop)) >= 0]:
        start, end, reason = min(found, key=lambda each: each[:2])
        return text[: start if reason is None else end], "stop", reason
    if choice.finish_reason == "length":
        return text, "length", None
    trimmed = _trimmed(choice.reported_stop, stops, stop_texts(request, can, tokenizer))
    return text + (trimmed or ""), "stop", stops.get(trimmed) if trimmed else None


def _trimmed(reported: Stop | UnsetType, stops: Mapping[str, Stop], sent: Sequence[str]) -> str | None:
    """The stop that the server trimmed from the end of a text; one that does not say trimmed the one it was sent."""
    if reported is UNSET:
        return sent[0] if sent else None
    if isinstance(reported, str):
        if reported not in stops:
            raise _malformed(f"ended a candidate at {reported!r}, which was not a requested stop string")
        return reported
    return next((stop for stop, reason in stops.items() if reported is not None and reason == reported), None)


# Log probabilities.


def _choice(request: Request, choice: CompletionChoice, can: Capabilities, tokenizer: Tokenizer) -> tuple[Candidate, tuple[float, ...]]:
    """The chosen option as a candidate, and the log probability of each option, -inf for one that the server did not name."""
    options = request.option_ids
    known = _first_place(choice)
    logprobs = tuple(known.get(token, known.get(tokenizer.decode([token]), -math.inf)) for token in options)
    if can.exact_options and not all(token in known for token in options):
        raise _malformed("lacks the log probabilities of some options")
    ids: tuple[int, ...] = (options[max(range(len(options)), key=logprobs.__getitem__)],)
    if can.exact_options and can.returns_ids:
        ids = choice.token_ids or ()
    total = next((logprob for token, logprob in zip(options, logprobs, strict=True) if (token,) == ids), None)
    return Candidate(ids=ids, text=tokenizer.decode(ids), cumulative_logprob=total, finish_reason="length"), logprobs


def _first_place(choice: CompletionChoice) -> dict[str | int, float]:
    """Log probabilities of the alternatives at the first sampled token, by id where the server says it, else by text."""
    given = choice.logprobs
    if given and given.content:
        entry = given.content[0]
        return {label: _logprob(one.logprob) for one in (entry, *entry.top_logprobs) for label in (one.token, one.id) if label is not None}
    if given and given.top_logprobs and given.top_logprobs[0]:
        return {_label(text): _logprob(value) for text, value in given.top_logprobs[0].items()}
    raise _malformed("lacks the requested log probabilities of the options")


def _label(text: str) -> str | int:
    number = text.removeprefix(_ID_LABEL)
    return int(number) if number != text and number.isdecimal() and len(number) <= _ID_DIGITS else text


def _logprob(value: float | None) -> float:
    if value is None or not value <= _MAX_LOGPROB:
        raise _malformed(f"has a log probability of {value}")
    return -math.inf if value <= _MIN_LOGPROB else value


def _sampled_logprobs(choice: CompletionChoice) -> list[float]:
    """Log probabilities of the sampled tokens."""
    given = choice.logprobs
    if given is None:
        return []
    values = [entry.logprob for entry in given.content] if given.content is not None else given.token_logprobs or ()
    return [_logprob(value) for value in values]


def _confidence(choice: CompletionChoice, logprobs: Sequence[float]) -> Confidence | None:
    """The confidence of the first tokens of a candidate, those of `logprobs`."""
    given = choice.logprobs
    if given is not None and given.content is not None:
        named = [[one.logprob for one in (entry.top_logprobs or (entry,))] for entry in given.content]
    else:
        named = [list(place.values()) if place else [] for place in (given.top_logprobs if given else None) or ()]
    places = [sorted(map(_logprob, place), reverse=True) for place in named[: len(logprobs)]]
    if len(places) != len(logprobs) or not all(places):
        raise _malformed("lacks the log probabilities of the likeliest tokens")
    return confidence_of(logprobs, places)


def _scored(request: Request, choice: CompletionChoice) -> tuple[float, ...]:
    """Log probabilities of the tokens at the end of the prompt."""
    places = (choice.prompt_logprobs or ())[-len(request.scored_ids) :]
    given = [place.get(str(token)) if place else None for place, token in zip(places, request.scored_ids, strict=False)]
    found = tuple(_logprob(one.logprob) for one in given if one is not None)
    if len(found) != len(request.scored_ids):
        raise _malformed("lacks the log probabilities of some scored tokens")
    return found
