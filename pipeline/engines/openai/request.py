"""Requests in the terms of OpenAI's completions endpoint: a `Request` enters, the body to send leaves. Pure.

There are two kinds of servers. vLLM's takes and gives token ids, and honours every field; any other takes and gives text, and OpenAI's own
fields alone. It looks for the texts of special tokens in all that it is sent: a prompt in which a text spells one out is refused.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from pipeline.confidence import LIKELIEST
from pipeline.engine import Request, Tokenizer
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.errors import RequestRefused

_VLLM: Mapping[str, Any] = {
    **{"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    **{"skip_special_tokens": False, "add_special_tokens": False, "include_stop_str_in_output": True},
    **{"return_token_ids": True, "return_tokens_as_token_ids": True},
}
"""Fields that every request to vLLM has: without them it would use the model's own generation config, and give no ids."""
TOP_LOGPROBS = 5
"""Most alternatives of a token for which OpenAI's own endpoint gives log probabilities."""
_SEEDS_64, _SEEDS_32 = 1 << 62, 1 << 31
"""Bounds of a seed: candidate j of vLLM draws from seed + j, which must stay below 2^63; other servers keep a seed in 32 bits."""
CLOSE = re.compile(r"</(\w+:)?think(ing)?>|\[/THINK(ING)?\]", re.IGNORECASE)
"""How models write the closing reasoning tag: `</think>`, `</seed:think>`, `[/THINK]`."""


class Terms(Struct, frozen=True, kw_only=True):
    """How one server is spoken to."""

    spec: OpenAISpec
    ids: bool
    """True for vLLM's own server: ids, every sampling field, log probabilities of any option."""
    priorities: bool = False
    """True if it orders its queue by priorities."""
    logprobs: bool = True
    """False if it gives no log probabilities at all."""
    adds_bos: bool = False
    """True if it puts a beginning-of-sequence token before a text prompt."""

    @property
    def cannot(self) -> tuple[str, ...]:
        """The fact of that name of `Engine.facts`."""
        return (*(() if self.logprobs else ("options", "logprobs")), *(() if self.ids else ("scoring", "top_k", "min_p")))


class Prompt(NamedTuple):
    """A prompt as the server takes it."""

    sent: Raw | str
    """Ids in JSON, or a text."""
    tokens: int
    """How many tokens the server must read, one that it adds included."""


def prompt_of(request: Request, terms: Terms, tokenizer: Tokenizer) -> Prompt:
    """The prompt of `request`, followed by the tokens to score. Raises `RequestRefused` for a text that a server would read otherwise."""
    ids = [*request.prompt_ids, *request.scored_ids]
    if terms.ids:
        return Prompt(Raw(msgspec.json.encode(ids)), len(ids))
    controls, text = tokenizer.control_ids, tokenizer.decode(ids)
    read = tokenizer.encode(text)
    if [id_ for id_ in read if id_ in controls] != [id_ for id_ in ids if id_ in controls]:
        what = "the prompt spells out a special token of the model, which a server that accepts text would not read as text"
        raise RequestRefused(f"request {request.request_id!r}: {what}")
    if terms.adds_bos and ids[0] in tokenizer.special_ids.values():
        return Prompt(text.removeprefix(tokenizer.decode(ids[:1])), len(read))
    return Prompt(text, len(read) + terms.adds_bos)


def body_of(request: Request, prompt: Prompt, terms: Terms, tokenizer: Tokenizer, max_tokens: int) -> bytes:
    """The body to send for `request`, of which no candidate is to have more than `max_tokens`."""
    body: dict[str, Any] = {
        "model": terms.spec.model if request.adapter is None else terms.spec.adapters[request.adapter],
        "prompt": prompt.sent,
        "max_tokens": 1 if request.scored_ids else max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
    }
    if request.temperature:
        body["seed"] = request.seed % (_SEEDS_64 if terms.ids else _SEEDS_32)
    if (n := candidates_asked(request)) > 1:
        body["n"] = n
    if stops := stop_texts(request, terms, tokenizer):
        body["stop"] = stops
    if terms.logprobs and (request.option_ids or request.logprobs):
        body["logprobs"] = (len(request.option_ids) or LIKELIEST) if terms.ids else TOP_LOGPROBS
    if terms.ids:
        body |= {**_VLLM, "top_k": request.top_k or -1, "min_p": request.min_p, "stop_token_ids": request.stop_ids}
        if request.option_ids:
            body |= {"logprob_token_ids": request.option_ids, "allowed_token_ids": request.option_ids}
        if request.scored_ids:
            body["prompt_logprobs"] = 0
        if terms.priorities:
            body["priority"] = request.priority
    return msgspec.json.encode(body | terms.spec.extra)  # type: ignore[operator]


def candidates_asked(request: Request) -> int:
    """The number of candidates that the server is asked for: greedy ones are all the same."""
    return 1 if request.temperature == 0 else request.n


def stop_texts(request: Request, terms: Terms, tokenizer: Tokenizer) -> tuple[str, ...]:
    """The stop strings to send: a server that returns text must stop at the text of a stop id, too.

    It may not tell which stop ended a text, so it is sent either the stop strings or those of the ids: with both there would be no telling
    which one it trimmed. The text is cut at the others when it comes back.
    """
    if terms.ids or request.stop:
        return request.stop
    return tuple(dict.fromkeys(tokenizer.decode([stop]) for stop in request.stop_ids))


def answer_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The ids of what a server wrote: the first mark that closes a thought does so, no other special token has a meaning in it."""
    found = next((mark for mark in CLOSE.finditer(text) if mark[0] in tokenizer.special_ids), None)
    parts = [text] if found is None else [text[: found.start()], found[0], text[found.end() :]]
    return tuple(tokenizer.encode_parts(["", *parts]))
