"""Requests in the terms of OpenAI's completions endpoint: what a server can do, as data, and the body of a request. Pure.

Servers differ in which fields they take beyond OpenAI's own, and a hosted one rejects a field it does not know. So a server is described by
the set of optional fields that it honours, and a body holds only fields of that set. A server that takes and gives text in place of ids
looks for the texts of special tokens in all that it is sent: a prompt in which a text spells one out is not sent as it is.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from msgspec import Struct

from pipeline.confidence import LIKELIEST
from pipeline.engine import Request, Tokenizer
from pipeline.errors import RequestRefused

TOP_K, MIN_P = "top_k", "min_p"
MANY, PRIORITY, SCORING, SEED, STOP_IDS = "n", "priority", "prompt_logprobs", "seed", "stop_token_ids"
NEUTRAL: Mapping[str, Any] = {
    TOP_K: -1,
    MIN_P: 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "skip_special_tokens": False,
    "add_special_tokens": False,
    "include_stop_str_in_output": True,
    "no_stop_trim": True,
    "return_tokens_as_token_ids": True,
}
"""Optional fields with the values that every request has: without them servers use the model's own generation config, trim the
stop from the text, and hide `</think>` where it is a special token."""
IDS: Mapping[str, Any] = {"return_token_ids": True}
EXACT = frozenset({"logprob_token_ids", "allowed_token_ids"})
"""Fields with which vLLM chooses among named tokens and gives exactly their log probabilities."""
_SEEDS_64, _SEEDS_32 = 1 << 62, 1 << 31
"""Bounds of a seed: candidate j of vLLM draws from seed + j, which must stay below 2^63; other servers keep a seed in 32 bits."""

_ANSWER_BYTES, _SAMPLED_BYTES, _PROMPT_BYTES = 1 << 20, 1024, 512
"""Bytes of an answer without any token, of a sampled token (its text, perhaps escaped, its id, and log probabilities), and of a token, or a
character, of a prompt that is repeated or scored."""

_CLOSE = re.compile(r"</(\w+:)?think(ing)?>|\[/THINK(ING)?\]", re.IGNORECASE)
"""How models write the closing reasoning tag: `</think>`, `</seed:think>`, `[/THINK]`."""


class Capabilities(Struct, frozen=True, kw_only=True):
    """The features of a server: those of its preset that it confirms."""

    prompts: Literal["ids", "text"]
    """The form in which it takes prompts."""
    fields: frozenset[str]
    """Optional request fields that it honours."""
    top_logprobs: int
    """The number of alternatives of a token for which it gives log probabilities; 0: it gives none at all."""
    reports_stop: bool = False
    """True if its answers say which stop ended a candidate."""
    adds_bos: bool = False
    """True if it puts a beginning-of-sequence token before a text prompt."""
    counts_prompts: bool = False
    """True if its answers say how many tokens it has read."""
    hides_marks: bool = False
    """True if its texts lack the closing reasoning tag, though the model wrote it."""

    @property
    def cannot(self) -> tuple[str, ...]:
        """The fact of that name of `Engine.facts`."""
        able = {
            "options": bool(self.top_logprobs),
            "logprobs": bool(self.top_logprobs),
            "scoring": SCORING in self.fields,
            "marks": not self.hides_marks,
            TOP_K: TOP_K in self.fields,
            MIN_P: MIN_P in self.fields,
            "seeds": SEED in self.fields,
        }
        return tuple(name for name, is_able in able.items() if not is_able)

    @property
    def returns_ids(self) -> bool:
        """True if its answers hold token ids."""
        return self.fields >= IDS.keys()

    @property
    def exact_options(self) -> bool:
        """True if it gives the log probability of every option of a choice, however unlikely."""
        return self.fields >= EXACT


_COMMON = frozenset({SEED, MANY})
_OWN_FIELDS = Capabilities(prompts="text", fields=_COMMON | NEUTRAL.keys(), top_logprobs=20)
PRESETS: Mapping[str, Capabilities] = {
    "vllm": Capabilities(prompts="ids", fields=_COMMON | {*NEUTRAL, *IDS, *EXACT, STOP_IDS, PRIORITY, SCORING}, top_logprobs=20),
    "sglang": _OWN_FIELDS,
    "llama.cpp": _OWN_FIELDS,
    "generic": Capabilities(prompts="text", fields=_COMMON, top_logprobs=5),
}
"""The features of servers by their kind. `generic` takes OpenAI's own fields and no others."""
OWNERS: Mapping[str | None, str] = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
"""The preset of a server by the owner (`owned_by`) that it states of its models; of any other it is `generic`."""


def shared_capabilities(one: Capabilities, other: Capabilities) -> Capabilities:
    """The capabilities that two servers have in common."""
    both = ("reports_stop", "adds_bos", "counts_prompts")
    return Capabilities(
        prompts="ids" if one.prompts == other.prompts == "ids" else "text",
        fields=one.fields & other.fields,
        top_logprobs=min(one.top_logprobs, other.top_logprobs),
        hides_marks=one.hides_marks or other.hides_marks,
        **{name: getattr(one, name) and getattr(other, name) for name in both},
    )


def max_bytes(body: Mapping[str, Any]) -> int:
    """Most bytes that an answer to `body` can have: several times what servers write for its candidates, and for a prompt that they repeat
    or score."""
    sampled: int = body["max_tokens"] * body.get("n", 1)
    return _ANSWER_BYTES + _SAMPLED_BYTES * sampled + _PROMPT_BYTES * len(body["prompt"])


def prompt_of(request: Request, can: Capabilities, tokenizer: Tokenizer) -> list[int] | str:
    """The prompt as the server takes it, followed by the tokens to score, if any."""
    ids = [*request.prompt_ids, *request.scored_ids]
    if can.prompts == "ids":
        return ids
    first = 1 if can.adds_bos and ids[0] in tokenizer.special_ids.values() else 0
    return prompt_text(tokenizer, ids[first:])


def stop_texts(request: Request, can: Capabilities, tokenizer: Tokenizer) -> tuple[str, ...]:
    """The stop strings to send.

    A server that returns text instead of ids must stop at the text of a stop id, too. One that does not tell which stop ended a
    text is sent either the stop strings or those of the ids: with both there would be no telling which one it trimmed. The
    text is cut at the others when it comes back.
    """
    if can.returns_ids:
        return request.stop
    of_ids = tuple(tokenizer.decode([stop]) for stop in request.stop_ids)
    return request.stop + of_ids if can.reports_stop else request.stop or of_ids


def request_bodies(request: Request, can: Capabilities, model: str, tokenizer: Tokenizer, max_tokens: int) -> list[dict[str, Any]]:
    """The bodies to send for `request`: one, or one for each candidate where the server gives only one at a time."""
    copies = candidates_asked(request)
    body = _body(request, can, model, tokenizer, max_tokens)
    if copies == 1:
        return [body]
    if MANY in can.fields:
        return [body | {MANY: copies}]
    return [body | {SEED: body[SEED] + index} if SEED in body else body for index in range(copies)]


def candidates_asked(request: Request) -> int:
    """The number of candidates that the server is asked for: greedy ones are all the same."""
    return 1 if request.temperature == 0 else request.n


def _body(request: Request, can: Capabilities, model: str, tokenizer: Tokenizer, max_tokens: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "prompt": prompt_of(request, can, tokenizer),
        "max_tokens": 1 if request.scored_ids else max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
    }
    if stops := stop_texts(request, can, tokenizer):
        body["stop"] = list(dict.fromkeys(stops))
    if (logprobs := _logprobs(request, can)) is not None:
        body["logprobs"] = logprobs
    sampling = {TOP_K: request.top_k or NEUTRAL[TOP_K], MIN_P: request.min_p}
    optional = {**NEUTRAL, **sampling, **IDS, STOP_IDS: list(request.stop_ids), PRIORITY: request.priority}
    if request.temperature:
        optional[SEED] = request.seed % (_SEEDS_64 if can.returns_ids else _SEEDS_32)
    if request.option_ids:
        optional |= {name: list(request.option_ids) for name in EXACT}
    if request.scored_ids:
        optional[SCORING] = 0
    return body | {name: value for name, value in optional.items() if name in can.fields}


def _logprobs(request: Request, can: Capabilities) -> int | None:
    """The value of `logprobs`; None: none are asked for, or the server has none."""
    wanted: Sequence[int] = request.option_ids
    if not can.top_logprobs or not (wanted or request.logprobs):
        return None
    if wanted:
        return len(wanted) if can.exact_options else can.top_logprobs
    return min(LIKELIEST, can.top_logprobs)


def probe_request(tokenizer: Tokenizer, can: Capabilities, question: str = "0 or 1?") -> Request:
    """A small request: one token after a short chat, a choice between two where the server has log probabilities."""
    prompt = tokenizer.encode(tokenizer.render([{"role": "user", "content": question}]))
    options = tuple(dict.fromkeys(tokenizer.encode(digit)[-1] for digit in "01")) if can.top_logprobs else ()
    return Request(request_id="probe", prompt_ids=prompt, max_tokens=1, option_ids=options, priority=1)


# Servers that take and give text.


def answer_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """The ids of what a server wrote: the first mark that closes a thought does so, and no other special token has a meaning in it."""
    found = next((mark for mark in _CLOSE.finditer(text) if mark[0] in tokenizer.special_ids), None)
    parts = [text] if found is None else [text[: found.start()], found[0], text[found.end() :]]
    return tuple(tokenizer.encode_parts(["", *parts]))


def close_mark(tokenizer: Tokenizer) -> str | None:
    """The text of the model's token that closes a thought; None where it has none."""
    return next((text for text in tokenizer.special_ids if _CLOSE.fullmatch(text)), None)


def prompt_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of `ids`, which a server makes the same control tokens of, and no more: a space follows the first character of one that a
    text spells out. Raises `RequestRefused` where that does not help."""
    control_ids, text = tokenizer.control_ids, tokenizer.decode(ids)
    controls = _any_of(tuple(text for text, id_ in tokenizer.special_ids.items() if id_ in control_ids))
    places = [place for place, id_ in enumerate(ids) if id_ in control_ids]
    if controls.findall(text) == [tokenizer.decode([ids[place]]) for place in places]:
        return text
    said: list[str] = []
    end = 0
    for place in places:
        start = len(tokenizer.decode(ids[:place]))
        said.append(controls.sub(_broken, text[end:start]))
        end = len(tokenizer.decode(ids[: place + 1]))
        said.append(text[start:end])
    whole = "".join([*said, controls.sub(_broken, text[end:])])
    if [id_ for id_ in tokenizer.encode(whole) if id_ in control_ids] != [ids[place] for place in places]:
        raise RequestRefused("the prompt spells out a special token of the model, which a server that accepts text would not read as text")
    return whole


def _broken(found: "re.Match[str]") -> str:
    return f"{found[0][0]} {found[0][1:]}"


@lru_cache(maxsize=64)
def _any_of(texts: tuple[str, ...]) -> "re.Pattern[str]":
    """Finds one of `texts`, the longest one at a place."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")
