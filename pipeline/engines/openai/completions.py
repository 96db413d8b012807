"""OpenAI's completions endpoint: a `Request` enters and the body to send leaves; a `Reply` enters and a `Completion` leaves, or `NoAnswer`
says what is wrong. Pure.

There are two kinds of servers. vLLM's takes and gives token ids, and honours every field; any other takes and gives text, and OpenAI's own
fields alone. It looks for the texts of special tokens in all that it is sent: a prompt in which a text spells one out is refused.

Counts and names are not the answer: one that is missing, of a wrong type or cannot be true is set aside. Whatever the bytes are, nothing
but `NoAnswer` is raised. What every engine's answer must be, `pipeline.engines.validate` checks afterwards.
"""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from pipeline.confidence import LIKELIEST, confidence_of
from pipeline.engine import Candidate, Completion, FinishReason, Request, Tokenizer, Usage
from pipeline.engines.openai.client import NoAnswer, Reply, Verdict, quoted
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.tokenizer import ids_to_stop
from pipeline.errors import RequestRefused

Stop = str | int | None
"""What ended a candidate: a stop string, a stop id, or an end of sequence."""
AGREEING = 256
"""Servers that are sent texts may count one in `AGREEING` tokens differently: their own tokenizers differ in rare characters."""
_MIN_LOGPROB, _MAX_LOGPROB = -9998.0, 0.01
"""A log probability of the first or less means minus infinity: vLLM writes -9999, because JSON has no infinity. One may be above 0 as much
as the second: half-precision servers round."""
_NULL = Raw(b"null")
_VLLM: Mapping[str, Any] = {
    **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    **{"skip_special_tokens": False, "add_special_tokens": False, "include_stop_str_in_output": True},
    **{"return_token_ids": True, "return_tokens_as_token_ids": True},
}
"""Fields that every request to vLLM has: without them it would use the model's own generation config, and give no ids."""
_SEEDS_64, _SEEDS_32 = 1 << 62, 1 << 31
"""Bounds of a seed: candidate j of vLLM draws from seed + j, which must stay below 2^63; other servers keep a seed in 32 bits."""
CLOSE = re.compile(r"</(\w+:)?think(ing)?>|\[/THINK(ING)?\]", re.IGNORECASE)
"""How models write the closing reasoning tag: `</think>`, `</seed:think>`, `[/THINK]`."""


class Terms(Struct, frozen=True, kw_only=True):
    """How one server is spoken to."""

    spec: OpenAISpec
    tokenizer: Tokenizer
    ids: bool
    """True for vLLM's own server: ids, every sampling field, log probabilities of any option."""
    logprobs: bool = True
    """False if it gives no log probabilities, or none of the options."""
    adds_bos: bool = False
    """True if it puts a beginning-of-sequence token before a text prompt."""

    @property
    def cannot(self) -> tuple[str, ...]:
        """The fact of that name of `Engine.facts`."""
        return (*(() if self.logprobs else ("options", "logprobs")), *(() if self.ids else ("top_k", "min_p")))


class Prompt(NamedTuple):
    """A prompt as the server takes it."""

    sent: Raw | str
    """Ids in JSON, or a text."""
    tokens: int
    """How many tokens the server must read, one that it adds included."""


def prompt_of(request: Request, terms: Terms) -> Prompt:
    """The prompt of `request`. Raises `RequestRefused` for a text that a server would read otherwise."""
    ids = list(request.prompt_ids)
    if terms.ids:
        return Prompt(Raw(msgspec.json.encode(ids)), len(ids))
    controls, text = terms.tokenizer.control_ids, terms.tokenizer.decode(ids)
    read = terms.tokenizer.encode(text)
    if [id_ for id_ in read if id_ in controls] != [id_ for id_ in ids if id_ in controls]:
        what = "the prompt spells out a special token of the model, which a server that accepts text would not read as text"
        raise RequestRefused(f"request {request.request_id!r}: {what}")
    if terms.adds_bos and ids[0] in terms.tokenizer.special_ids.values():
        return Prompt(text.removeprefix(terms.tokenizer.decode(ids[:1])), len(read))
    return Prompt(text, len(read) + terms.adds_bos)


def body_of(request: Request, prompt: Prompt, terms: Terms, room: int) -> bytes:
    """The body to send for `request`, of which no candidate is to have more than `room` tokens."""
    body: dict[str, Any] = {
        "model": terms.spec.model if request.adapter is None else terms.spec.adapters[request.adapter],
        "prompt": prompt.sent,
        "max_tokens": min(request.max_tokens, room),
        "temperature": request.temperature,
        "top_p": request.top_p,
    }
    if request.temperature:
        body["seed"] = request.seed % (_SEEDS_64 if terms.ids else _SEEDS_32)
    if (n := candidates_asked(request)) > 1:
        body["n"] = n
    if stops := stop_texts(request, terms):
        body["stop"] = stops
    if terms.logprobs and (request.option_ids or request.logprobs):
        body["logprobs"] = (len(request.option_ids) or LIKELIEST) if terms.ids else 5  # as many as OpenAI gives
    if terms.ids:
        body |= {**_VLLM, "top_k": request.top_k or -1, "min_p": request.min_p, "stop_token_ids": request.stop_ids}
        if request.option_ids:
            body |= {"logprob_token_ids": request.option_ids, "allowed_token_ids": request.option_ids}
    return msgspec.json.encode(body | terms.spec.extra)  # type: ignore[operator]


def candidates_asked(request: Request) -> int:
    """The number of candidates that the server is asked for: greedy ones are all the same."""
    return 1 if request.temperature == 0 else request.n


def stop_texts(request: Request, terms: Terms) -> tuple[str, ...]:
    """The stop strings to send: a server that returns text must stop at the text of a stop id, too.

    It may not tell which stop ended a text, so it is sent either the stop strings or those of the ids: with both there would be no telling
    which one it trimmed. The text is cut at the others when it comes back.
    """
    if terms.ids or request.stop:
        return request.stop
    return tuple(dict.fromkeys(terms.tokenizer.decode([stop]) for stop in request.stop_ids))


def answer_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The ids of what a server wrote: the first mark that closes a thought does so, no other special token has a meaning in it."""
    found = next((mark for mark in CLOSE.finditer(text) if mark[0] in tokenizer.special_ids), None)
    parts = [text] if found is None else [text[: found.start()], found[0], text[found.end() :]]
    return tuple(tokenizer.encode_parts(["", *parts]))


# Replies.


class TokenLogprob(Struct, frozen=True):
    """One token in the newer form of `Logprobs`, `content`, which llama.cpp uses."""

    logprob: float | None = None
    token: str = ""
    top_logprobs: "tuple[TokenLogprob, ...]" = ()


class Logprobs(Struct, frozen=True):
    """Log probabilities of one candidate's tokens: in lists, one entry a token, or in the newer form, `content`."""

    token_logprobs: tuple[float | None, ...] | None = None
    top_logprobs: tuple[dict[str, float | None] | None, ...] | None = None
    content: tuple[TokenLogprob, ...] | None = None


class Choice(Struct, frozen=True):
    """One candidate as the server sent it (OpenAI's word for it is choice)."""

    finish_reason: FinishReason
    """Any other is no end of a text: a server that was stopped, a filter, a call of a tool."""
    index: int | None = None
    text: str | None = None
    token_ids: tuple[Annotated[int, Meta(ge=0, lt=1 << 31)], ...] | None = None
    logprobs: Logprobs | None = None
    stop_reason: Stop | UnsetType = UNSET
    """vLLM's field for the stop string or stop id that ended it; None for an end of sequence."""
    prompt_token_ids: Raw = _NULL
    """The prompt, which vLLM repeats with every candidate."""

    @property
    def places(self) -> list[tuple[float, dict[str, float]]]:
        """By place, the log probability of the sampled token there, and those of the likeliest ones by their names."""
        given = self.logprobs or Logprobs()
        if given.content is not None:
            found = [(one.logprob, {each.token: each.logprob for each in (one, *one.top_logprobs)}) for one in given.content]
        else:
            sampled, likeliest = given.token_logprobs or (), given.top_logprobs or ()
            found = [(one, likeliest[place] or {} if place < len(likeliest) else {}) for place, one in enumerate(sampled)]
        return [(_logprob(one), {name: _logprob(value) for name, value in named.items()}) for one, named in found]


class Body(Struct, frozen=True):
    """The body of an answer."""

    choices: tuple[Choice, ...]
    usage: Any = None
    model: Any = None

    def count(self, name: str, part: str | None = None) -> int | None:
        """A token count that the server states; None where it states none that can be one."""
        found = self.usage if part is None or not isinstance(self.usage, dict) else self.usage.get(part)
        value = found.get(name) if isinstance(found, dict) else None
        return value if isinstance(value, int) and 0 <= value < 1 << 31 else None


_BODY = msgspec.json.Decoder(Body)


def _malformed(words: str) -> NoAnswer:
    return NoAnswer("malformed", words)


def body_in(reply: Reply) -> Body:
    """The answer that a reply holds; raises `NoAnswer` for a refusal and for what is no answer."""
    if reply.status not in (200, 201):
        raise refusal_of(reply)
    try:
        return _BODY.decode(reply.content)
    except msgspec.ValidationError as error:
        words = words_in(reply.content)
        failure = NoAnswer("failing", f"answered with an error: {quoted(words)}") if words else _malformed(f"is not a completion: {error}")
    except (ValueError, RecursionError) as error:
        failure = _malformed(f"is not JSON: {quoted(str(error))}")
    raise failure


def words_in(content: bytes) -> str:
    """The words of the error in `content`, empty where it holds none: OpenAI, vLLM and llama.cpp put an object or a text into `error`,
    SGLang a `message`, FastAPI a `detail`."""
    try:
        fields = msgspec.json.decode(content, type=dict[str, Any])
    except (ValueError, RecursionError):
        return ""
    said = fields.get("error") or fields.get("message") or fields.get("detail") or ""
    said = said.get("message") or said if isinstance(said, dict) else said
    return said if isinstance(said, str) else msgspec.json.encode(said).decode()


def refusal_of(reply: Reply) -> NoAnswer:
    """The meaning of a reply that holds no answer by its status, with the server's own words."""
    status, wait = reply.status, reply.headers.get("Retry-After", "")
    said = words_in(reply.content) or reply.content.decode(errors="replace")
    verdict: Verdict = "busy" if status in (429, 503) else "refused" if 400 <= status < 500 and status not in (408, 409, 425) else "failing"
    retry_after_s = float(wait) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", wait) else None
    return NoAnswer(verdict, f"answered {status}: {quoted(said)}".removesuffix(": "), retry_after_s)


def completion_of(request: Request, body: Body, prompt: Prompt, terms: Terms) -> Completion:
    """The completion of `request` that `body`, the answer to `prompt`, holds; raises `NoAnswer`."""
    asked = candidates_asked(request)
    if len(body.choices) != asked:
        raise _malformed(f"has {len(body.choices)} choices, not {asked}")
    choices = sorted(body.choices, key=lambda choice: choice.index or 0)
    if asked > 1 and [choice.index for choice in choices] != list(range(asked)):
        raise _malformed("numbers its choices in an unexpected way")
    _check_prompt(body, prompt, terms)
    if request.option_ids:
        candidates, options = _chosen(request, choices[0], terms)
    else:
        candidates, options = [_candidate(request, choice, terms) for choice in choices], ()
    return Completion(
        candidates=tuple(candidates * (request.n // asked)),
        option_logprobs=options,
        usage=_usage(request, body, sum([len(candidate.ids) for candidate in candidates])),
        model=quoted(body.model) if isinstance(body.model, str) else None,
    )


def _check_prompt(body: Body, prompt: Prompt, terms: Terms) -> None:
    """Raise `NoAnswer` where a server has read another prompt than it was sent: a proxy that mixes connections up gives the answers to
    other requests, others truncate a prompt or wrap it. Some servers count it once for each candidate."""
    for choice in body.choices if terms.ids else ():
        repeated = choice.prompt_token_ids
        if repeated not in (prompt.sent, _NULL) and msgspec.json.decode(repeated) != msgspec.json.decode(prompt.sent):
            raise _malformed("belongs to another prompt, or `tokenizer` does not match its model")
    stated, sent = body.count("prompt_tokens"), prompt.tokens
    agreeing = 0 if terms.ids else sent // AGREEING
    if stated and all(abs(stated - sent * copies) > agreeing * copies for copies in (1, len(body.choices))):
        fewer = "the server truncates prompts" if stated < sent else "the server wraps prompts in a chat template or adds special tokens"
        raise _malformed(f"counts {stated:,} tokens for a prompt of {sent:,}: {fewer}, or `tokenizer` does not match its model")


def _usage(request: Request, body: Body, sampled: int) -> Usage:
    """The counts that the server states; where it states none, or some that cannot be true, those of the request and of the `sampled`
    tokens. For several candidates vLLM states as cached what the last of them found, which the others had just computed."""
    given, written = len(request.prompt_ids), body.count("completion_tokens")
    if written is None or not sampled <= written <= request.n * (request.max_tokens + 1):
        written = sampled
    cached = body.count("cached_tokens", "prompt_tokens_details") if candidates_asked(request) == 1 else None
    return Usage(input_tokens=given, cached_input_tokens=None if cached is None else min(cached, given), output_tokens=written)


def _candidate(request: Request, choice: Choice, terms: Terms) -> Candidate:
    if terms.ids:
        ids, sampled, stop = _end_of_ids(request, choice, terms)
        text, finish = terms.tokenizer.decode(ids), choice.finish_reason
    else:
        text, finish, stop = _end_of_text(request, choice, terms)
        ids, sampled = answer_ids(terms.tokenizer, text), None
        if len(ids) > request.max_tokens:  # not every server keeps to it
            ids, sampled = ids[: request.max_tokens], request.max_tokens
            text, finish, stop = terms.tokenizer.decode(ids), "length", None
    if not request.logprobs:
        return Candidate(ids=ids, text=text, cumulative_logprob=None, finish_reason=finish, stop_reason=stop)
    places = choice.places
    if len(places) != len(choice.token_ids or places) or (ids and not places):
        raise _malformed(f"has log probabilities for {len(places)} tokens, not {len(choice.token_ids or ids)}")
    places = places[:sampled]
    if not all(likeliest for _, likeliest in places):
        raise _malformed("lacks the log probabilities of the likeliest tokens")
    logprobs = [logprob for logprob, _ in places]
    confidence = confidence_of(logprobs, [sorted(each.values(), reverse=True) for _, each in places]) if places else None
    total = math.fsum(logprobs)
    return Candidate(ids=ids, text=text, cumulative_logprob=total, finish_reason=finish, stop_reason=stop, confidence=confidence)


def _end_of_ids(request: Request, choice: Choice, terms: Terms) -> tuple[tuple[int, ...], int, Stop]:
    """The ids to keep, how many were sampled, and the stop that ended them."""
    ids, finish, reported = choice.token_ids, choice.finish_reason, choice.stop_reason
    if ids is None or not (ids or finish == "stop"):
        raise _malformed("has no token ids")
    if finish == "stop" and isinstance(reported, str) and reported not in request.stop:
        raise _malformed(f"ended a candidate at {quoted(reported)!r}, which was not a requested stop string")
    return ids_to_stop(ids, finish, reported, request.stop_ids, terms.tokenizer.decode)


def _end_of_text(request: Request, choice: Choice, terms: Terms) -> tuple[str, FinishReason, Stop]:
    """The text up to and including its first stop, which servers trim or leave, and what ended it."""
    # The stop reason of each text that can end a candidate; None for an end of sequence that is no stop id.
    stops: dict[str, Stop] = {terms.tokenizer.decode([token]): None for token in terms.tokenizer.eos_ids}
    stops |= {terms.tokenizer.decode([token]): token for token in request.stop_ids} | {stop: stop for stop in request.stop}
    text, finish, trimmed = choice.text, choice.finish_reason, choice.stop_reason
    if text is None:
        raise _malformed("has no text")
    if found := [(start, start + len(stop), reason) for stop, reason in stops.items() if (start := text.find(stop)) >= 0]:
        start, end, reason = min(found, key=lambda each: each[:2])
        return text[: start if reason is None else end], "stop", reason
    if finish == "length":
        return text, "length", None
    if trimmed is UNSET:  # one that does not say trimmed what it was sent
        trimmed = next(iter(stop_texts(request, terms)), None)
    if not isinstance(trimmed, str):
        return text, "stop", None
    if trimmed not in stops:
        raise _malformed(f"ended a candidate at {quoted(trimmed)!r}, which was not a requested stop string")
    return text + trimmed, "stop", stops[trimmed]


def _chosen(request: Request, choice: Choice, terms: Terms) -> tuple[list[Candidate], tuple[float, ...]]:
    """The chosen option as the candidate, and the log probability of each option, -inf for one that a text server did not name."""
    options = request.option_ids
    if not (known := choice.places[0][1] if choice.places else {}):
        raise _malformed("lacks the requested log probabilities of the options")
    names = [f"token_id:{token}" if terms.ids else terms.tokenizer.decode([token]) for token in options]
    if terms.ids and not known.keys() >= set(names):
        raise _malformed("lacks the log probabilities of some options")
    logprobs = tuple([known.get(name, -math.inf) for name in names])
    ids = choice.token_ids or () if terms.ids else (options[max(range(len(options)), key=logprobs.__getitem__)],)
    total = next((logprob for token, logprob in zip(options, logprobs, strict=True) if (token,) == ids), None)
    return [Candidate(ids=ids, text=terms.tokenizer.decode(ids), cumulative_logprob=total, finish_reason="length")], logprobs


def _logprob(value: float | None) -> float:
    if value is None or not value <= _MAX_LOGPROB:
        raise _malformed(f"has a log probability of {value}")
    return -math.inf if value <= _MIN_LOGPROB else value
