"""The meaning of a server's reply: a `Reply` enters, a `Completion` leaves, or `NoAnswer` says what is wrong. Pure.

Counts, times and names are not the answer: one that is missing, of a wrong type or cannot be true is set aside. Whatever the bytes are,
nothing but `NoAnswer` is raised. What every engine's answer must be, `pipeline.engines.validate` checks afterwards.
"""

import json
import math
import re
from codecs import BOM_UTF8
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from pipeline.confidence import confidence_of
from pipeline.engine import Candidate, Completion, FinishReason, Request, Timing, Tokenizer, Usage
from pipeline.engines.openai.client import NoAnswer, Reply, Verdict, quoted
from pipeline.engines.openai.request import Prompt, Terms, answer_ids, candidates_asked, stop_texts
from pipeline.engines.tokenizer import count_through_stop
from pipeline.engines.validate import flaw_in_timing

Stop = str | int | None
"""What ended a candidate: a stop string, a stop id, or an end of sequence."""
AGREEING = 256
"""Servers that are sent texts may count one in `AGREEING` tokens differently: their own tokenizers differ in rare characters."""
_MIN_LOGPROB, _MAX_LOGPROB = -9998.0, 0.01
"""A log probability of the first or less means minus infinity: vLLM writes -9999, because JSON has no infinity. One may be above 0 as much
as the second: half-precision servers round."""
_ID_LABEL = re.compile(r"token_id:([0-9]{1,10})")
"""vLLM's label of a token."""
_NULL = Raw(b"null")


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

    @property
    def sampled(self) -> list[float]:
        """Those of the sampled tokens."""
        values = self.token_logprobs or () if self.content is None else [entry.logprob for entry in self.content]
        return [_logprob(value) for value in values]

    @property
    def places(self) -> list[dict[str, float]]:
        """By place, those of the likeliest tokens there, by their names."""
        found = self.top_logprobs or ()
        if self.content is not None:
            found = tuple([{one.token: one.logprob for one in (entry, *entry.top_logprobs)} for entry in self.content])
        return [{name: _logprob(value) for name, value in (place or {}).items()} for place in found]


class Choice(Struct, frozen=True):
    """One candidate as the server sent it (OpenAI's word for it is choice)."""

    index: int | None = None
    text: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    finish_reason: str | None = None
    token_ids: tuple[Annotated[int, Meta(ge=0, lt=1 << 31)], ...] | None = None
    logprobs: Logprobs | None = None
    stop_reason: Stop | UnsetType = UNSET
    """vLLM's field for the stop string or stop id that ended it; None for an end of sequence."""
    prompt_logprobs: tuple[dict[str, TokenLogprob] | None, ...] | None = None
    prompt_token_ids: Raw = _NULL
    """The prompt, which vLLM repeats with every candidate."""

    @property
    def written(self) -> str:
        """The text, which some servers put elsewhere where all of it is a thought."""
        if (text := self.text or self.reasoning_content or self.reasoning or self.text) is None:
            raise _malformed("has no text")
        return text

    @property
    def finish(self) -> FinishReason:
        """How it ended; raises `NoAnswer` for what is no end of a text: a server that was stopped, a filter, a call of a tool."""
        if self.finish_reason is None:
            raise _malformed("does not say how it ended")
        if self.finish_reason not in ("stop", "length"):
            raise NoAnswer("cut", f"ended with finish_reason {quoted(self.finish_reason)!r}")
        return "stop" if self.finish_reason == "stop" else "length"


class Body(Struct, frozen=True):
    """The body of an answer."""

    choices: tuple[Choice, ...]
    usage: Any = None
    model: Any = None
    metrics: Any = None

    def count(self, name: str, part: str | None = None) -> int | None:
        """A token count that the server states; None where it states none that can be one."""
        found = self.usage if part is None or not isinstance(self.usage, dict) else self.usage.get(part)
        value = found.get(name) if isinstance(found, dict) else None
        return value if isinstance(value, int) and 0 <= value < 1 << 31 else None

    @property
    def timing(self) -> Timing:
        """The times that vLLM states with `--enable-per-request-metrics`; empty for others, and where they cannot be true."""
        if not isinstance(self.metrics, dict):
            return Timing()
        found = [self.metrics.get(name) for name in ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")]
        queue, first, decode = (max(0.0, ms / 1000) if isinstance(ms, int | float) else None for ms in found)
        prefill = None if queue is None or first is None else max(0.0, first - queue)
        timing = Timing(queue_time_s=queue, prefill_time_s=prefill, decode_time_s=decode, time_to_first_token_s=first)
        return Timing() if flaw_in_timing(timing) else timing


_BODY = msgspec.json.Decoder(Body)


def _malformed(words: str, excess: int = 0) -> NoAnswer:
    return NoAnswer("malformed", words, excess=excess)


def body_in(reply: Reply) -> Body:
    """The answer that a reply holds; raises `NoAnswer` for a refusal and for what is no answer."""
    if reply.status not in (200, 201):
        raise refusal_of(reply)
    if reply.headers.get("Content-Type", "").startswith("text/event-stream"):
        raise _malformed("streams, though not asked to")
    try:
        return _decoded(reply.content)
    except msgspec.ValidationError as error:
        words = words_in(reply.content)
        failure = NoAnswer("failing", f"answered with an error: {quoted(words)}") if words else _malformed(f"is not a completion: {error}")
    except (ValueError, RecursionError) as error:
        failure = _malformed(f"is not JSON: {quoted(str(error))}")
    raise failure


def _decoded(content: bytes) -> Body:
    """The answer in `content`, also behind a byte-order mark, with half a character (as U+FFFD) or with `-Infinity` in it."""
    content = content.removeprefix(BOM_UTF8)
    try:
        return _BODY.decode(content)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        try:
            lenient = json.dumps(json.loads(content, parse_constant={"-Infinity": _MIN_LOGPROB}.get), ensure_ascii=False)
        except ValueError:
            raise error from None
        return _BODY.decode(lenient.encode(errors="surrogatepass").decode(errors="replace"))


def words_in(content: bytes) -> str:
    """The words of the error in `content`, empty where it holds none: OpenAI, vLLM and llama.cpp put an object or a text into `error`,
    SGLang a `message`, FastAPI a `detail`."""
    try:
        fields = msgspec.json.decode(content, type=dict[str, Any])
    except (ValueError, RecursionError):
        return ""
    error = fields.get("error")
    said = [error.get("message") if isinstance(error, dict) else None, error, fields.get("message"), fields.get("detail")]
    found = next(filter(None, said), "")
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()


def refusal_of(reply: Reply) -> NoAnswer:
    """The meaning of a reply that holds no answer by its status, with the server's own words."""
    status, wait = reply.status, reply.headers.get("Retry-After", "")
    if 300 <= status < 400:
        place = quoted(reply.headers.get("Location", "another address"))
        return NoAnswer("failing", f"redirects to {place}, which is not followed; if that is the right server, set base_url to it")
    said = words_in(reply.content) or reply.content.decode(errors="replace")
    verdict: Verdict = "busy" if status in (429, 503) else "refused" if 400 <= status < 500 and status not in (408, 409, 425) else "failing"
    retry_after_s = float(wait) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", wait) else None
    return NoAnswer(verdict, f"answered {status}: {quoted(said)}".removesuffix(": "), retry_after_s=retry_after_s)


def completion_of(request: Request, body: Body, prompt: Prompt, terms: Terms, tokenizer: Tokenizer) -> Completion:
    """The completion of `request` that `body`, the answer to `prompt`, holds; raises `NoAnswer`."""
    asked = candidates_asked(request)
    if len(body.choices) != asked:
        raise _malformed(f"has {len(body.choices)} choices, not {asked}")
    choices = sorted(body.choices, key=lambda choice: choice.index or 0)
    if asked > 1 and [choice.index for choice in choices] != list(range(asked)):
        raise _malformed("numbers its choices in an unexpected way")
    _check_prompt(body, prompt, terms)
    if request.scored_ids:
        return Completion(candidates=(), scored_logprobs=_scored(request, choices[0]), usage=_usage(request, body, 0))
    options: tuple[float, ...] = ()
    if request.option_ids:
        chosen, options = _chosen(request, choices[0], terms, tokenizer)
        candidates = [chosen]
    else:
        candidates = [_candidate(request, choice, terms, tokenizer) for choice in choices]
    return Completion(
        candidates=tuple(candidates * (request.n // asked)),
        option_logprobs=options,
        usage=_usage(request, body, sum([len(candidate.ids) for candidate in candidates])),
        timing=body.timing,
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
        what = f"counts {stated:,} tokens for a prompt of {sent:,}: {fewer}, or `tokenizer` does not match its model"
        raise _malformed(what, stated - sent)


def _usage(request: Request, body: Body, sampled: int) -> Usage:
    """The counts that the server states; where it states none, or some that cannot be true, those of the request and of the `sampled`
    tokens. For several candidates vLLM states as cached what the last of them found, which the others had just computed."""
    given, written, cached = len(request.prompt_ids) + len(request.scored_ids), body.count("completion_tokens"), None
    if written is None or not sampled <= written <= request.n * (request.max_tokens + 1):
        written = sampled
    if not request.scored_ids and candidates_asked(request) == 1:
        cached = body.count("cached_tokens", "prompt_tokens_details")
    cached = None if cached is None else min(cached, given)
    return Usage(input_tokens=given, cached_input_tokens=cached, output_tokens=0 if request.scored_ids else written)


def _candidate(request: Request, choice: Choice, terms: Terms, tokenizer: Tokenizer) -> Candidate:
    if terms.ids:
        ids, sampled, stop = _end_of_ids(request, choice, tokenizer)
        text, finish = tokenizer.decode(ids), choice.finish
    else:
        text, finish, stop = _end_of_text(request, choice, terms, tokenizer)
        ids, sampled = answer_ids(tokenizer, text), None
        if len(ids) > request.max_tokens:  # not every server keeps to it
            ids, sampled = ids[: request.max_tokens], request.max_tokens
            text, finish, stop = tokenizer.decode(ids), "length", None
    if not request.logprobs:
        return Candidate(ids=ids, text=text, cumulative_logprob=None, finish_reason=finish, stop_reason=stop)
    given = choice.logprobs or Logprobs()
    logprobs = given.sampled
    if len(logprobs) != len(choice.token_ids or logprobs) or (ids and not logprobs):
        raise _malformed(f"has log probabilities for {len(logprobs)} tokens, not {len(choice.token_ids or ids)}")
    logprobs = logprobs[:sampled]
    places = [sorted(place.values(), reverse=True) for place in given.places[: len(logprobs)]]
    if len(places) < len(logprobs) or not all(places):
        raise _malformed("lacks the log probabilities of the likeliest tokens")
    confidence = confidence_of(logprobs, places) if logprobs else None
    total = math.fsum(logprobs)
    return Candidate(ids=ids, text=text, cumulative_logprob=total, finish_reason=finish, stop_reason=stop, confidence=confidence)


def _end_of_ids(request: Request, choice: Choice, tokenizer: Tokenizer) -> tuple[tuple[int, ...], int, Stop]:
    """The ids to keep, how many were sampled, and the stop that ended them. An end of sequence was sampled, though it is not kept; what
    token-level speculation wrote beyond a stop string was not."""
    ids, reported = choice.token_ids, choice.stop_reason
    if ids is None or not (ids or choice.finish == "stop"):
        raise _malformed("has no token ids")
    if choice.finish == "length":
        return ids, len(ids), None
    if ids and ids[-1] in request.stop_ids:
        return ids, len(ids), ids[-1]
    if not isinstance(reported, str):
        return ids[:-1], len(ids), None
    if reported not in request.stop:
        raise _malformed(f"ended a candidate at {quoted(reported)!r}, which was not a requested stop string")
    kept = count_through_stop(ids, reported, tokenizer.decode)
    return ids[:kept], kept, reported


def _end_of_text(request: Request, choice: Choice, terms: Terms, tokenizer: Tokenizer) -> tuple[str, FinishReason, Stop]:
    """The text up to and including its first stop, which servers trim or leave, and what ended it."""
    # The stop reason of each text that can end a candidate; None for an end of sequence that is no stop id.
    stops: dict[str, Stop] = {tokenizer.decode([token]): None for token in tokenizer.eos_ids}
    stops |= {tokenizer.decode([token]): token for token in request.stop_ids} | {stop: stop for stop in request.stop}
    text, finish, trimmed = choice.written, choice.finish, choice.stop_reason
    if found := [(start, start + len(stop), reason) for stop, reason in stops.items() if (start := text.find(stop)) >= 0]:
        start, end, reason = min(found, key=lambda each: each[:2])
        return text[: start if reason is None else end], "stop", reason
    if finish == "length":
        return text, "length", None
    if trimmed is UNSET:  # one that does not say trimmed what it was sent
        trimmed = next(iter(stop_texts(request, terms, tokenizer)), None)
    if not isinstance(trimmed, str):
        return text, "stop", None
    if trimmed not in stops:
        raise _malformed(f"ended a candidate at {quoted(trimmed)!r}, which was not a requested stop string")
    return text + trimmed, "stop", stops[trimmed]


def named_logprobs(choice: Choice) -> dict[str | int, float]:
    """Log probabilities of the tokens named at the first place, by id where the server says it, else by text."""
    if not (first := next(iter(choice.logprobs.places if choice.logprobs else []), None)):
        raise _malformed("lacks the requested log probabilities of the options")
    return {int(label[1]) if (label := _ID_LABEL.fullmatch(name)) else name: value for name, value in first.items()}


def _chosen(request: Request, choice: Choice, terms: Terms, tokenizer: Tokenizer) -> tuple[Candidate, tuple[float, ...]]:
    """The chosen option as a candidate, and the log probability of each option, -inf for one that the server did not name."""
    options, known = request.option_ids, named_logprobs(choice) if choice.finish else {}
    logprobs = tuple([known.get(token, known.get(tokenizer.decode([token]), -math.inf)) for token in options])
    ids: tuple[int, ...] = (options[max(range(len(options)), key=logprobs.__getitem__)],)
    if terms.ids:
        if not known.keys() >= set(options):
            raise _malformed("lacks the log probabilities of some options")
        ids = choice.token_ids or ()
    total = next((logprob for token, logprob in zip(options, logprobs, strict=True) if (token,) == ids), None)
    return Candidate(ids=ids, text=tokenizer.decode(ids), cumulative_logprob=total, finish_reason="length"), logprobs


def _logprob(value: float | None) -> float:
    if value is None or not value <= _MAX_LOGPROB:
        raise _malformed(f"has a log probability of {value}")
    return -math.inf if value <= _MIN_LOGPROB else value


def _scored(request: Request, choice: Choice) -> tuple[float, ...]:
    """Log probabilities of the tokens at the end of the prompt."""
    places = (choice.prompt_logprobs or ())[-len(request.scored_ids) :]
    given = [place.get(str(token)) if place else None for place, token in zip(places, request.scored_ids, strict=False)]
    if len(given) < len(request.scored_ids) or None in given:
        raise _malformed("lacks the log probabilities of some scored tokens")
    return tuple([_logprob(one.logprob) for one in given if one is not None])
