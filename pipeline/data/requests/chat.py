"""The body of a request to `/v1/chat/completions`: JSON enters; the problem, the chat before it and the settings of its chains leave, or an
`ApiError`.

Every parameter is obeyed, or refused unless its value asks for nothing; only those that cannot change a text are ignored.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from pipeline.data.chat import MAX_MESSAGES, TURNS, takes_turns
from pipeline.data.requests.errors import ApiError
from pipeline.data.rows import kind_of
from pipeline.graph.prompts import Message
from pipeline.graph.spec import PLAIN_SAMPLING, MinP, Tokens, TopP

MAX_TEXT = 1_000_000
"""Most characters of all messages together: more than the context of any model holds."""
MAX_SAMPLES = 128
"""Most choices of a request, as in the API."""
MAX_STOPS = 4
"""Most stop sequences of a request, as in the API."""
NO_EFFECT = {
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
}
"""Parameters that change no text, and are ignored."""
ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "ignore_eos": (False,),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "presence_penalty": (0,),
    "priority": (0,),
    "prompt_logprobs": (),
    "reasoning_effort": (),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "structured_outputs": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Parameters that cannot be obeyed, with the values besides null under which there is nothing to obey. Those of vLLM's server are among
them."""
IN_A_MESSAGE = {"role", "content", "reasoning", "reasoning_content", "annotations"}
"""What a message may hold. An earlier thought is left out, as the chat templates of reasoning models do."""


class ChainSettings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a problem says of its own chains; None: what the graph and the run say."""

    max_tokens: int | None = None
    """Maximum number of tokens of thought and answer together."""
    temperature: float | None = None
    """Of every stage that samples text; 0: greedy."""
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    """In place of the run's seed. The id of the problem is then no part of the seed: equal requests have equal answers."""
    stop: tuple[str, ...] = ()
    """Texts at which the answer ends, themselves left out. A thought does not end at them."""
    samples: int | None = None
    """Number of chains."""

    @property
    def sampling(self) -> dict[str, Any]:
        """The fields of a `Request` that are set here in place of the stage's own."""
        return {name: value for name in PLAIN_SAMPLING if (value := getattr(self, name)) is not None}


class AskedChat(Struct, frozen=True, kw_only=True):
    """What is asked in a request."""

    model: str
    """The model by the name that the client has for it; nothing here knows which there are."""
    problem: str
    """The last message, which is the user's."""
    history: tuple[Message, ...] = ()
    """The messages before it."""
    settings: ChainSettings = ChainSettings()
    stream: bool = False
    """Whether the answer is to come in pieces."""
    include_usage: bool = False
    """Whether a stream is to end with the tokens that it took."""


class _StreamOptions(Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class _Body(Struct, kw_only=True):
    """The parameters that are obeyed."""

    model: str
    messages: list[dict[str, Any]]
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: TopP | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1_000_000)] | None = None
    min_p: MinP | None = None
    seed: int | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_SAMPLES)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


OBEYED = frozenset(_Body.__struct_fields__)


def read_chat(body: bytes | str | Mapping[str, Any]) -> AskedChat:
    """What is asked in a body, which is JSON or what was read from it. Raises `ApiError`."""
    parameters = _decoded(body) if isinstance(body, bytes | str) else body
    _check_parameters(parameters)
    try:
        asked = msgspec.convert({name: value for name, value in parameters.items() if name in OBEYED}, _Body)
    except msgspec.ValidationError as error:
        raise _wrong_value(str(error)) from error
    chat = _chat(asked.messages)
    return AskedChat(
        model=asked.model,
        problem=chat[-1].content,
        history=chat[:-1],
        settings=_settings(asked),
        stream=bool(asked.stream),
        include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
    )


def _decoded(body: bytes | str) -> dict[str, Any]:
    text = body.encode() if isinstance(body, str) else body
    if sum(map(text.count, (b"[", b"{", b","))) > MAX_TEXT:  # a few bytes each, of which 80 are made
        raise ApiError(f"the body has more than {MAX_TEXT:,} values", code="request_too_large", status=413)
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.ValidationError as error:
        raise ApiError(f"the body is no JSON object: {error}", code="invalid_type") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(f"the body is not JSON: {error}", code="invalid_json") from error


def _check_parameters(parameters: Mapping[str, Any]) -> None:
    for name, value in parameters.items():
        if name in OBEYED or name in NO_EFFECT or (value is None and name in ASKS_NOTHING):
            continue
        if name not in ASKS_NOTHING:
            raise ApiError(f"unknown parameter `{name}`", name, "unknown_parameter")
        if value not in ASKS_NOTHING[name]:
            raise ApiError(f"`{name}` is not supported; leave it out", name, "unsupported_parameter")


def _wrong_value(message: str) -> ApiError:
    """The error for a value of another type, or out of bounds, from the decoder's sentence about it."""
    what, _, path = message.partition(" - at `$.")
    what, path = what[:1].lower() + what[1:], path.removesuffix("`")
    if "missing required field" in what:
        name = what.split("`")[1]
        return ApiError(f"missing required parameter `{name}`", name, "missing_required_parameter")
    code = "invalid_value" if any(sign in what for sign in ("<", ">")) else "invalid_type"
    return ApiError(f"`{path}`: {what}", path, code)


def _settings(asked: _Body) -> ChainSettings:
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        raise ApiError("`max_tokens` and `max_completion_tokens` mean the same here; set one of them", "max_tokens", "invalid_value")
    return ChainSettings(
        max_tokens=asked.max_tokens or asked.max_completion_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=None if asked.top_k is None else max(0, asked.top_k),  # vLLM's -1 is off, as 0 is
        min_p=asked.min_p,
        seed=asked.seed,
        stop=_stops(asked.stop),
        samples=asked.n,
    )


def _stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOPS:
        raise ApiError(f"`stop` has {len(stops)} texts, more than {MAX_STOPS}", "stop", "invalid_value")
    if "" in stops:
        raise ApiError("`stop` has an empty text, at which everything would end", "stop", "invalid_value")
    return stops


def _chat(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """The messages of a chat that ends with the user's."""
    chat = tuple(_message(f"messages[{place}]", each) for place, each in enumerate(messages))
    roles = [message.role for message in chat]
    if len(chat) > MAX_MESSAGES:
        raise ApiError(f"`messages` has {len(chat)} messages, more than {MAX_MESSAGES}", "messages", "invalid_value")
    if not takes_turns(roles):
        said = f"are by {', '.join(roles)}" if roles else "is empty"
        raise ApiError(f"`messages` {said}; expected {TURNS}", "messages", "invalid_value")
    if (size := sum(len(message.content) for message in chat)) > MAX_TEXT:
        raise ApiError(f"`messages` have {size:,} characters, more than {MAX_TEXT:,}", "messages", "string_above_max_length")
    return chat


def _message(where: str, message: Mapping[str, Any]) -> Message:
    role = message.get("role")
    if role not in ("system", "developer", "user", "assistant"):
        raise ApiError(f"`{where}.role` is {role!r}; expected system, developer, user or assistant", f"{where}.role", "invalid_value")
    for name, value in message.items():
        if name not in IN_A_MESSAGE and value not in (None, [], {}):
            raise ApiError(f"`{where}.{name}` is not supported; leave it out", f"{where}.{name}", "unsupported_parameter")
    content = _content(f"{where}.content", message.get("content"))
    return Message("system" if role == "developer" else str(role), content)


def _content(where: str, content: Any) -> str:
    if isinstance(content, list):
        content = "".join(_part(f"{where}[{place}]", part) for place, part in enumerate(content))
    if not isinstance(content, str):
        raise ApiError(f"`{where}` is {kind_of(content)}; expected text", where, "invalid_type")
    if not content.strip():
        raise ApiError(f"`{where}` is empty", where, "invalid_value")
    return content


def _part(where: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise ApiError(f"`{where}` is of type {kind!r}; only text is supported", f"{where}.type", "invalid_value")
    if not isinstance(text := part.get("text"), str):
        raise ApiError(f"`{where}.text` is {kind_of(text)}; expected text", f"{where}.text", "invalid_type")
    return text
