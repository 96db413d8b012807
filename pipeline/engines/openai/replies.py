"""What a server's reply means, decided in one place for every backend that asks over HTTP. Pure.

A status, an error inside a reply of status 200, a finish reason or a message enters. An answer leaves, or an `Unanswered` whose class says
what becomes of the request: it may be sent again, it ends its chain, or it ends the run. The tables hold what the API references of OpenAI,
OpenRouter, Mistral, DeepSeek, Zhipu, Anthropic and Gemini name, what the sources of vLLM 0.32, SGLang, llama.cpp and Ollama send, and what
LiteLLM translates (`_FINISH_REASON_MAP`).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw, Struct

from pipeline.engine import FinishReason, Request
from pipeline.engines.openai.client import UNREADABLE, Reply, Server, ServerError, server_error_of
from pipeline.errors import BadCompletion, ContextOverflow, EngineDead, EngineUnavailable, GraphError, PipelineError, RequestRefused

LONGEST_PATIENCE_S = 3600.0
"""A server that asks to come back later than this is out of reach for this run, which can be resumed then."""
NULL = Raw(b"null")


class Unanswered(Exception):
    """A reply is no answer to its request; the text says why, as the end of a sentence about the server."""


class Malformed(Unanswered):
    """An answer does not fit the request; the text is the end of a sentence about the answer. It is asked for again."""

    def __str__(self) -> str:
        return f"sent an answer that {self.args[0]}"


class Aborted(Unanswered):
    """The server gave the request up, is busy, or its answer was cut short: the same request may be sent again."""

    def __init__(self, words: str, retry_after_s: float | None = None, *, busy: bool = False) -> None:
        super().__init__(words)
        self.retry_after_s, self.busy = retry_after_s, busy


class Unreadable(Aborted):
    """The answer is not JSON: it was cut short, or what answers is no such server."""


class Withheld(Unanswered):
    """The server refuses this request, or keeps its answer to itself, as it would if it were asked again: the chain ends."""


class Miscounted(Withheld):
    """The server states another number of prompt tokens than were sent, by `excess`: it has read something else."""

    def __init__(self, words: str, excess: int) -> None:
        super().__init__(words)
        self.excess = excess


class Overflowing(Unanswered):
    """The prompt is too long for the context, of `context` tokens where the server says so."""

    def __init__(self, words: str, context: int | None) -> None:
        super().__init__(words)
        self.context = context


class Closed(Unanswered):
    """The server answers no request of this run: the run ends, and can be resumed when the reason is gone. It is `final` where that will
    not be within seconds: a key or a purse, not a model that is being loaded."""

    def __init__(self, words: str, *, final: bool = False) -> None:
        super().__init__(words)
        self.final = final


Meaning = type[Malformed] | type[Aborted] | type[Withheld] | type[Closed]


def error_of(reply: Unanswered, role: str, request: Request, server: Server, max_model_len: int) -> PipelineError:
    """The error to raise for `request` to the engine `role`."""
    words = server.quote(str(reply))
    match reply:
        case Malformed():
            return BadCompletion(role, request.request_id, f"its answer {server.quote(reply.args[0])}")
        case Overflowing():
            return ContextOverflow(len(request.prompt_ids) + len(request.scored_ids), reply.context or max_model_len)
        case Withheld():
            return RequestRefused(f"request {request.request_id!r}: engine {role!r} at {server.url} {words}")
        case Closed():
            return EngineDead(role, f"the server at {server.url} {words}")
    return EngineUnavailable(role, f"at {server.url} {words}", reply.retry_after_s if isinstance(reply, Aborted) else None)


# Statuses, and errors inside a reply of status 200.

_KEY, _MODEL = "the key is not accepted", "no such model or address is served"
_PURSE = "the account has no credit left"
_STATUSES: Mapping[int, tuple[Meaning, str]] = {
    401: (Closed, _KEY),
    402: (Closed, _PURSE),
    403: (Closed, "the key lacks permission"),
    404: (Closed, _MODEL),
    405: (Closed, _MODEL),
    407: (Closed, "a proxy requires authentication"),
    408: (Aborted, ""),
    409: (Aborted, ""),
    410: (Closed, _MODEL),
    423: (Aborted, ""),
    425: (Aborted, ""),
    429: (Aborted, ""),
    501: (Closed, _MODEL),
}
"""What a status means; of others those from 500 on may pass, and all below refuse the request."""
_SAID: Sequence[tuple[re.Pattern[str], Meaning, str]] = (
    (
        re.compile(
            r"insufficient_(quota|balance|funds|credits?)|exceeded_current_quota|budget_exceeded|billing_(hard_limit|not_active)"
            r"|payment_required|arrearage|credit balance is too low|^insufficient (balance|credits?|funds)|budget has been exceeded",
            re.IGNORECASE,
        ),
        Closed,
        _PURSE,
    ),
    (
        re.compile(r"(invalid|incorrect|expired|missing)[_ ]api[_ ]key|api key (not valid|expired)|account_(deactivated|disabled)", re.I),
        Closed,
        _KEY,
    ),
    (re.compile(r"model_not_found", re.IGNORECASE), Closed, _MODEL),
    (re.compile(r"content_(filter|policy)|moderation|data_inspection_failed|\bflagged\b", re.IGNORECASE), Withheld, ""),
)
"""What the words of an error mean, before its status is looked at; its message counts where the status is one of a refusal."""
_OVERFLOWS = re.compile(r"context (length|size|window)|max_model_len|context_length_exceeded|exceed_context_size", re.IGNORECASE)


def refusal_of(reply: Reply) -> Unanswered:
    """What a reply means whose status is not 200."""
    error = server_error_of(reply)
    return _meaning(reply.status, error, f"answered {reply.status}: {error.text}", reply.retry_after_s)


def _meaning(status: int, error: ServerError, words: str, retry_after_s: float | None = None) -> Unanswered:
    said = (error.code, error.text) if 400 <= status < 500 else (error.code,)
    if status not in _STATUSES and any(map(_OVERFLOWS.search, said)):
        return Overflowing(words, error.context)
    found = next(((kind, why) for pattern, kind, why in _SAID if any(map(pattern.search, said))), None)
    kind, why = found or _STATUSES.get(status) or ((Aborted if status >= 500 else Withheld), "")
    if kind is Aborted and (retry_after_s or 0) > LONGEST_PATIENCE_S:
        return Closed(f"{words}; it asks to retry after {retry_after_s:,.0f} s", final=True)
    if kind is Aborted:
        return Aborted(words, retry_after_s, busy=status == 429)
    if kind is Closed:
        return Closed(f"{words}; {why}", final=why in (_KEY, _PURSE))
    return kind(words)


def error_within(content: bytes | Raw, prefix: str = "") -> Unanswered | None:
    """What an error means that `content` holds, the JSON of a reply of status 200 or of a part of it; None where it holds none.

    OpenRouter sends errors so once a provider has begun, LiteLLM and vLLM within a stream, others always. Their code is a status, a number
    of their own or a word. `prefix` goes before the server's words.
    """
    fields = _readable(content, dict[str, Raw]) or {}
    if fields.get("error", NULL) == NULL and ("choices" in fields or not fields.keys() & {"message", "detail", "msg", "errors"}):
        return None
    error = server_error_of(Reply(200, {}, bytes(content)))
    stated = next((int(word) for word in error.code.split() if re.fullmatch("[45][0-9][0-9]", word)), None)
    code = f" (code {stated})" if stated else ""
    return _meaning(stated or 500, error, f"{prefix or 'answered with an error: '}{error.text}{code}")


def refuse_closed(where: str, server: Server, api_key_env: str | None, reply: Reply) -> None:
    """Raise `GraphError` if `reply` says that the server will answer nothing: it does not accept the key, or wants one, or money."""
    if reply.ok or not isinstance(meaning := refusal_of(reply), Closed) or reply.status in (404, 405, 501):
        return
    if reply.status not in (401, 403):
        raise GraphError(where, f"the server at {server.url} {server.quote(str(meaning))}")
    known = f"does not accept the key in {api_key_env}"
    remedy = known if api_key_env else "requires a key: set api_key_env to the name of the variable that holds it"
    raise GraphError(where, f"{server.url} {remedy} (status {reply.status})")


# How a candidate ended.

_TOOL = "called a tool instead of writing an answer"
_FILTERED = "withheld its answer"
_FINISH: Mapping[str, FinishReason | tuple[Meaning, str]] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence", "end_turn", "complete"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "model_length", "max_output_tokens", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("tool_calls", "tool_use", "function_call", "malformed_function_call", "unexpected_tool_call"), (Withheld, _TOOL)),
    **dict.fromkeys(
        (
            *("content_filter", "content_filtered", "refusal", "safety", "sensitive", "recitation", "guardrail_intervened", "blocklist"),
            *("prohibited_content", "spii", "language", "error_toxic", "other", "escalation"),
        ),
        (Withheld, _FILTERED),
    ),
    "repetition": (Withheld, "ended its answer because it repeated itself"),
    **dict.fromkeys(
        (
            *("abort", "cancelled", "canceled", "error", "network_error", "insufficient_system_resource", "time_limit", "timeout"),
            *("load", "unload", "overloaded", "malformed_response"),
        ),
        (Aborted, "aborted the request"),
    ),
}
"""What each documented finish reason means, in lower case."""


def finish_of(stated: str | None, error: Raw = NULL) -> FinishReason:
    """How a candidate with finish reason `stated` and this `error` ended; raises what `_FINISH` says for what is no end of an answer."""
    if error != NULL and (failure := error_within(msgspec.json.encode({"error": error}), "broke its answer off: ")) is not None:
        raise failure
    if not stated:
        raise Malformed("does not say how it ended")
    meaning = _FINISH.get(stated.lower())
    if meaning is None:
        raise Malformed(f"ended a candidate with finish_reason {stated!r}")
    if isinstance(meaning, str):
        return meaning
    kind, why = meaning
    raise kind(f"{why}: it ended with finish_reason {stated!r}")


# Messages of chat completions.


class ChatMessage(Struct, frozen=True):
    """What a model said in a chat; each field may hold anything, so that its JSON is kept as it is."""

    content: Raw = NULL
    """A text, nothing, or a list of parts (Mistral, Anthropic)."""
    reasoning_content: Raw = NULL
    """The thought, as DeepSeek, SGLang, llama.cpp, LiteLLM and older versions of vLLM call it."""
    reasoning: Raw = NULL
    """The thought, as vLLM, OpenRouter, Ollama, LM Studio and Groq call it."""
    thinking: Raw = NULL
    reasoning_details: Raw = NULL
    """The thought in pieces (OpenRouter); some are encrypted."""
    thinking_blocks: Raw = NULL
    """The thought in pieces (LiteLLM, of Anthropic's models)."""
    refusal: Raw = NULL
    tool_calls: Raw = NULL
    function_call: Raw = NULL


class Said(NamedTuple):
    """The two parts of a reply; each is empty where the server shows none."""

    thought: str
    content: str


_THOUGHT = ("reasoning_content", "reasoning", "thinking", "reasoning_details", "thinking_blocks")
_UNSHOWN = ("reference", "redacted_thinking", "reasoning.encrypted")
"""Kinds of parts that hold no text."""


def said_in(message: ChatMessage, finish: FinishReason) -> Said:
    """What a message says; raises `Withheld` for a refusal and for the call of a tool, `Malformed` for what is no text."""
    content = list(_parts(message.content))
    refused = [text for kind, text in (*content, *_parts(message.refusal)) if kind == "refusal"] or _texts(message.refusal)
    if "".join(refused).strip():
        raise Withheld(f"refused to answer: {' '.join(refused)}")
    if _holds_any(message.tool_calls) or _holds_any(message.function_call) or any(kind == "tool_use" for kind, _ in content):
        raise Withheld(_TOOL)
    found = (_texts(getattr(message, name)) for name in _THOUGHT)
    thought = next(("".join(texts) for texts in found if any(texts)), "") or "".join(text for kind, text in content if kind == "thought")
    if message.content == NULL and not thought and finish != "length":
        raise Malformed("holds no text")
    return Said(thought, "".join(text for kind, text in content if kind == "text"))


def _texts(value: Raw) -> list[str]:
    return [text for _, text in _parts(value)]


def _holds_any(value: Raw) -> bool:
    return bytes(value).strip() not in (b"null", b"[]", b"{}", b'""', b"false")


def _parts(value: Raw) -> Iterator[tuple[str, str]]:
    """The parts of a content or a thought, each with its kind: `text`, `thought`, `refusal` or `tool_use`."""
    yield from _parts_of(_decoded(value), "text")


def _parts_of(value: Any, kind: str) -> Iterator[tuple[str, str]]:
    if value is None:
        return
    if isinstance(value, str):
        yield kind, value
    elif isinstance(value, list):
        for part in value:
            yield from _parts_of(part, kind)
    elif isinstance(value, dict):
        yield from _part(value, kind)
    else:
        raise Malformed(f"holds {str(value)[:20]!r} instead of text")


def _part(part: Mapping[str, Any], kind: str) -> Iterator[tuple[str, str]]:
    named = str(part.get("type") or "text").lower()
    if named in _UNSHOWN:
        return
    if "tool" in named or named == "function":
        yield "tool_use", ""
    elif named == "refusal":
        yield "refusal", str(part.get("refusal") or part.get("text") or "")
    elif named.startswith(("thinking", "reasoning")):
        yield from _parts_of(
            next((part[each] for each in ("thinking", "text", "reasoning", "summary", "content") if part.get(each)), None), "thought"
        )
    elif "text" in part or "content" in part:
        yield from _parts_of(part.get("text", part.get("content")), kind)
    elif "value" in part:
        yield from _parts_of(part["value"], kind)
    else:
        raise Malformed(f"has a part of type {named!r}, which is not text")


def _decoded(value: Raw) -> Any:
    try:
        return msgspec.json.decode(value)
    except UNREADABLE as error:
        raise Malformed(f"cannot be read: {error}") from None


def _readable(content: bytes | Raw, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(content, type=kind)
    except UNREADABLE:
        return None
