"""The meaning of a server's reply. Pure.

A status, an error inside a reply of status 200 or a finish reason enters. An answer leaves, or a `NoAnswer` whose verdict says
what becomes of the request. The tables hold what the API references of OpenAI, OpenRouter, Mistral, DeepSeek, Zhipu, Anthropic and Gemini
name, what the sources of vLLM 0.32, SGLang, llama.cpp and Ollama send, and what LiteLLM translates (`_FINISH_REASON_MAP`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from pipeline.engine import FinishReason, Request
from pipeline.engines.openai.client import NoAnswer, Reply, Verdict, quoted, read_json
from pipeline.errors import BadCompletion, ContextOverflow, EngineUnavailable, GraphError, PipelineError, RequestRefused

MAX_PATIENCE_S = 3600.0
"""A server that asks to come back later than this is out of reach for this run, which can be resumed then."""
NULL = Raw(b"null")


def error_of(found: NoAnswer, role: str, request: Request, url: str, max_model_len: int) -> PipelineError:
    """The error to raise for `request` to the engine `role`, of which the server at `url` gave no answer."""
    match found.verdict:
        case "malformed":
            return BadCompletion(role, request.request_id, f"its answer {quoted(found.words)}")
        case "overflow":
            return ContextOverflow(len(request.prompt_ids) + len(request.scored_ids), found.context or max_model_len)
        case "refused" | "withheld":
            return RequestRefused(f"request {request.request_id!r}: engine {role!r} at {url} {quoted(found.words)}")
    return EngineUnavailable(role, f"at {url} {quoted(found.words)}", found.retry_after_s)


# Statuses, and errors inside a reply of status 200.

_KEY, _MODEL, _PURSE = "the key is not accepted", "no such model or address is served", "the account has no credit left"
_STATUSES: Mapping[int, tuple[Verdict, str]] = {
    401: ("closed", _KEY),
    402: ("closed", _PURSE),
    403: ("gone", "the key lacks permission"),
    407: ("gone", "a proxy requires authentication"),
    429: ("busy", ""),
    **dict.fromkeys((404, 405, 410, 501), ("gone", _MODEL)),
    **dict.fromkeys((408, 409, 423, 425), ("failing", "")),
}
"""The meaning of a status; of others those from 500 on may pass, and all below refuse the request."""
_SAID: Sequence[tuple[re.Pattern[str], Verdict, str]] = (
    (
        re.compile(
            r"insufficient_(quota|balance|funds|credits?)|exceeded_current_quota|budget_exceeded|billing_(hard_limit|not_active)"
            r"|payment_required|arrearage|credit balance is too low|^insufficient (balance|credits?|funds)|budget has been exceeded",
            re.IGNORECASE,
        ),
        "closed",
        _PURSE,
    ),
    (
        re.compile(r"(invalid|incorrect|expired|missing)[_ ]api[_ ]key|api key (not valid|expired)|account_(deactivated|disabled)", re.I),
        "closed",
        _KEY,
    ),
    (re.compile(r"model_not_found", re.IGNORECASE), "gone", _MODEL),
    (re.compile(r"content_(filter|policy)|moderation|data_inspection_failed|\bflagged\b", re.IGNORECASE), "refused", ""),
)
"""The meaning of the words of an error, before its status is looked at; its message counts where the status is one of a refusal."""
_OVERFLOWS = re.compile(r"context (length|size|window)|max_model_len|context_length_exceeded|exceed_context_size", re.IGNORECASE)
_CONTEXT = re.compile(r"(?:context (?:length|size|window)|max_model_len)[^0-9]{0,40}([1-9][0-9]{0,8})(?![0-9])")


class ServerError(NamedTuple):
    """The reason for which a server refused a request."""

    text: str
    """The server's own words, on one line."""
    code: str = ""
    """Its error code and error type; empty where it gives none."""
    context: int | None = None
    """The context length that it names; None where it names none."""


def server_error_of(reply: Reply) -> ServerError:
    """Why the server refused, out of a `reply` that is not `ok`: OpenAI, vLLM and llama.cpp put an object or a text into `error`, SGLang a
    `message` next to it, FastAPI a `detail`, Gemini a list of one such object, OpenRouter what the provider said into `metadata`."""
    nothing = f"status {reply.status}"
    body = read_json(reply.content)
    body = body[0] if isinstance(body, list) and body else body
    if not isinstance(body, dict):
        return ServerError(quoted(reply.content.decode(errors="replace")) or nothing)
    stated = body.get("error")
    error = stated if isinstance(stated, dict) else {**body, "message": stated}
    said = (_text(each) for each in (error.get("message"), *(body.get(name) for name in ("message", "detail", "msg"))))
    metadata = error.get("metadata")
    provider = _text(metadata.get("raw")) if isinstance(metadata, dict) else ""
    text = quoted(": ".join(filter(None, (next(filter(None, said), nothing), provider))))
    stated_context = error.get("n_ctx")
    named = _CONTEXT.search(text)
    context = stated_context if isinstance(stated_context, int) and 0 < stated_context < 1 << 31 else named and int(named[1])
    return ServerError(text, quoted(f"{_text(error.get('code'))} {_text(error.get('type'))}"), context)


def _text(value: Any) -> str:
    """A JSON value as text: a string without its quotes; null, and what is empty, as an empty one."""
    if isinstance(value, str):
        return value
    return "" if value in (None, {}, []) else msgspec.json.encode(value).decode()


def refusal_of(reply: Reply) -> NoAnswer:
    """The meaning of a reply whose status is not 200."""
    if 300 <= reply.status < 400:
        place = quoted(reply.headers.get("location", "another address"))
        return NoAnswer("failing", f"redirects to {place}, which is not followed; if that is the right server, set base_url to it")
    error = server_error_of(reply)
    return _meaning(reply.status, error, f"answered {reply.status}: {error.text}", reply.retry_after_s)


def _meaning(status: int, error: ServerError, words: str, retry_after_s: float | None = None) -> NoAnswer:
    said = (error.code, error.text) if 400 <= status < 500 else (error.code,)
    if status not in _STATUSES and any(map(_OVERFLOWS.search, said)):
        return NoAnswer("overflow", words, context=error.context)
    found = next(((verdict, why) for pattern, verdict, why in _SAID if any(map(pattern.search, said))), None)
    verdict, why = found or _STATUSES.get(status) or (("failing" if status >= 500 else "refused"), "")
    if verdict in ("busy", "failing") and (retry_after_s or 0) > MAX_PATIENCE_S:
        return NoAnswer("closed", f"{words}; it asks to retry after {retry_after_s:,.0f} s")
    return NoAnswer(verdict, f"{words}; {why}" if why else words, retry_after_s=retry_after_s)


def error_within(content: bytes | Raw, prefix: str = "") -> NoAnswer | None:
    """The meaning of an error in `content`, the JSON of a reply of status 200 or of a part of it; None where it holds none.

    OpenRouter sends errors so once a provider has begun, LiteLLM and vLLM within a stream, others always. Their code is a status, a number
    of their own or a word. `prefix` goes before the server's words.
    """
    fields = read_json(content, dict[str, Raw]) or {}
    if fields.get("error", NULL) == NULL and ("choices" in fields or not fields.keys() & {"message", "detail", "msg", "errors"}):
        return None
    error = server_error_of(Reply(200, {}, bytes(content)))
    stated = next((int(word) for word in error.code.split() if re.fullmatch("[45][0-9][0-9]", word)), None)
    code = f" (code {stated})" if stated else ""
    found = _meaning(stated or 500, error, f"{prefix or 'answered with an error: '}{error.text}{code}")
    return NoAnswer("withheld", found.words) if found.verdict == "refused" else found


def refuse_closed(where: str, url: str, api_key_env: str | None, reply: Reply) -> None:
    """Raise `GraphError` if `reply` says that the server at `url` will answer nothing: it redirects elsewhere, does not accept the key, or
    wants one, or money."""
    if reply.ok or reply.status in (404, 405, 501):
        return
    meaning = refusal_of(reply)
    if reply.status in (401, 403) and meaning.verdict in ("gone", "closed"):
        known = f"does not accept the key in {api_key_env}"
        remedy = known if api_key_env else "requires a key: set api_key_env to the name of the variable that holds it"
        raise GraphError(where, f"{url} {remedy} (status {reply.status})")
    if meaning.verdict in ("gone", "closed") or reply.status < 400:
        raise GraphError(where, f"the server at {url} {quoted(meaning.words)}")


# How a candidate ended.

_FINISH: Mapping[str, FinishReason | tuple[Verdict, str]] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence", "end_turn", "complete"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "model_length", "max_output_tokens", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(
        ("tool_calls", "tool_use", "function_call", "malformed_function_call", "unexpected_tool_call"),
        ("withheld", "called a tool instead of writing an answer"),
    ),
    **dict.fromkeys(
        (
            *("content_filter", "content_filtered", "refusal", "safety", "sensitive", "recitation", "guardrail_intervened", "blocklist"),
            *("prohibited_content", "spii", "language", "error_toxic", "other", "escalation"),
        ),
        ("withheld", "withheld its answer"),
    ),
    "repetition": ("withheld", "ended its answer because it repeated itself"),
    **dict.fromkeys(
        (
            *("abort", "cancelled", "canceled", "error", "network_error", "insufficient_system_resource", "time_limit", "timeout"),
            *("load", "unload", "overloaded", "malformed_response"),
        ),
        ("failing", "aborted the request"),
    ),
}
"""The meaning of each documented finish reason, in lower case."""


def finish_of(stated: str | None, error: Raw = NULL) -> FinishReason:
    """How a candidate with finish reason `stated` and this `error` ended; raises `NoAnswer` for what is no end of an answer."""
    if error != NULL and (failure := error_within(msgspec.json.encode({"error": error}), "broke its answer off: ")) is not None:
        raise failure
    if not stated:
        raise NoAnswer("malformed", "does not say how it ended")
    meaning = _FINISH.get(stated.lower())
    if meaning is None:
        raise NoAnswer("malformed", f"ended a candidate with finish_reason {stated!r}")
    if isinstance(meaning, str):
        return meaning
    verdict, why = meaning
    raise NoAnswer(verdict, f"{why}: it ended with finish_reason {stated!r}")
