"""The OpenAI API: bodies of `/v1/chat/completions` and lines of a batch enter, what is asked or an `ApiError` leaves; finished chains
enter, a reply leaves.

Every parameter is obeyed, or refused unless its value asks for nothing; only those that cannot change a text are ignored.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from pipeline.data.problems import ChainSettings
from pipeline.graph.prompts import THINK_CLOSE, Message
from pipeline.graph.spec import MinP, Tokens, TopP

NO_EFFECT = frozenset("metadata parallel_tool_calls prompt_cache_key safety_identifier service_tier store user".split())
"""Parameters that change no text, and are ignored."""
NEUTRAL: dict[str, Sequence[Any]] = dict.fromkeys("frequency_penalty ignore_eos logprobs presence_penalty top_logprobs".split(), (0,))
NEUTRAL |= {"best_of": (1,), "repetition_penalty": (1,), "tool_choice": ("none", "auto"), "response_format": ({"type": "text"},)}
"""The values under which parameters that cannot be obeyed ask for nothing; a null or an empty value of any parameter does not either."""
T = TypeVar("T")


class ApiError(Exception):
    """A request answered with an error: `param` is the parameter that is wrong, as a path."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, *, status: int = 400) -> None:
        super().__init__(message)
        self.message, self.param, self.code, self.status = message, param, code, status

    @property
    def body(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


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
    include_usage: bool = False
    """Whether a stream ends with the tokens that it took."""


class _Part(Struct, tag_field="type", tag="text"):
    text: str


class _Message(Struct):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, Meta(pattern=r"\S")] | Annotated[list[_Part], Meta(min_length=1)]


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
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: str | Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=4)] | None = None
    stream: bool | None = None
    stream_options: dict[str, bool | None] | None = None


class _BatchLine(Struct):
    """A line of a batch."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=1000)]
    method: Literal["POST"]
    url: Literal["/v1/chat/completions"]
    body: dict[str, Any]


def read_chat(body: bytes | str | Mapping[str, Any]) -> AskedChat:
    """What is asked in a body, which is JSON or what was read from it. Raises `ApiError`."""
    try:
        given = body if isinstance(body, Mapping) else msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(f"the body is not a JSON object: {error}", code="invalid_json") from error
    for name, value in given.items():
        obeyed = name in NO_EFFECT or name in _Body.__struct_fields__
        if not obeyed and value not in (None, [], {}, *NEUTRAL.get(name, ())):
            raise ApiError(f"`{name}` is not supported; leave it out", name, "unsupported_parameter")
    asked = _converted(given, _Body)
    if asked.max_tokens is not None and asked.max_completion_tokens is not None:
        raise ApiError("`max_tokens` and `max_completion_tokens` mean the same here; set one of them", "max_tokens", "invalid_value")
    *history, last = read_messages("messages", asked.messages)
    settings = ChainSettings(
        max_tokens=asked.max_tokens or asked.max_completion_tokens,
        top_k=None if asked.top_k is None else max(0, asked.top_k),  # vLLM's -1 is off, as 0 is
        stop=(asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ()),
        samples=asked.n,
        **{name: getattr(asked, name) for name in ("temperature", "top_p", "min_p", "seed")},
    )
    stream, usage = bool(asked.stream), bool((asked.stream_options or {}).get("include_usage"))
    return AskedChat(model=asked.model, problem=last.content, history=tuple(history), settings=settings, stream=stream, include_usage=usage)


def read_messages(name: str, messages: Sequence[Any]) -> tuple[Message, ...]:
    """The messages of a chat that ends with the user's. Raises `ApiError`."""
    said = _converted(messages, list[_Message], name)
    texts = [each.content if isinstance(each.content, str) else "".join(part.text for part in each.content) for each in said]
    chat = tuple(Message(each.role.replace("developer", "system"), text) for each, text in zip(said, texts, strict=True))
    roles = [message.role for message in chat]
    if not re.fullmatch("s?(ua)*u", "".join(role[0] for role in roles)):
        turns = "an optional system message, then alternating user and assistant messages, ending with the user's"
        raise ApiError(f"`{name}` has messages by {', '.join(roles) or 'nobody'}; expected {turns}", name, "invalid_value")
    return chat


def _converted(value: Any, kind: type[T], where: str = "") -> T:
    """`value`, which is at a path of the request, as a `kind`. Raises `ApiError`."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        param = (where + path.rstrip("`")).lstrip(".") or what.split("`")[-2]
        if what.startswith("Object missing"):
            raise ApiError(what, param, "missing_required_parameter") from error
        raise ApiError(f"`{param}`: {what}", param, "invalid_value") from error


def is_request(names: Collection[str]) -> bool:
    """Whether a row with columns of these names is a line of a batch: most of its keys are there, and no problem of our own."""
    return len({*_BatchLine.__struct_fields__}.intersection(names)) > 2 and "problem" not in names


def read_request(record: Mapping[str, Any]) -> AskedChat:
    """What is asked in a line of a batch. Raises `ApiError`."""
    asked = read_chat(_converted(record, _BatchLine).body)
    if asked.stream:
        raise ApiError("`stream` is not supported in a batch; leave it out", "stream", "unsupported_parameter")
    return asked


class ChainReply(Struct, frozen=True, kw_only=True):
    """What one finished chain wrote, and what it took."""

    thought: str
    """As the engines wrote it, with the reasoning tag that closes it."""
    answer: str | None
    """What follows the thought; None where it came to none."""
    cut: bool | None
    """Whether the answer ended at a token limit; None where that is not recorded."""
    thought_tokens: int
    input_tokens: Mapping[str, int]
    """Tokens that each engine read, by role."""
    output_tokens: Mapping[str, int]
    """Tokens that each engine sampled, by role."""


def completion(
    replies: Sequence[ChainReply], *, name: str, created: int, model: str, stop: Sequence[str] = (), close: str = THINK_CLOSE
) -> dict[str, Any]:
    """The answer that consists of these `replies`, a choice each. `name` is its id, `created` when it was there in seconds since 1970,
    `model` what wrote it; the answers end at the texts of `stop`, and `close` is the closing reasoning tag."""
    choices = [{"index": index, "logprobs": None, **_choice(reply, stop, close)} for index, reply in enumerate(replies)]
    about = {"id": name, "object": "chat.completion", "created": created, "model": model}
    return about | {"choices": choices, "usage": usage_of(replies)}


def usage_of(replies: Sequence[ChainReply]) -> dict[str, Any]:
    """Tokens of all calls to all engines. Rejected candidates count, and every call reads its prompt, most of it from a cache."""
    read, written = Counter[str](), Counter[str]()
    for reply in replies:
        read.update(reply.input_tokens)
        written.update(reply.output_tokens)
    details = {"reasoning_tokens": sum(reply.thought_tokens for reply in replies)}
    by_role = {role: _tokens(read[role], written[role]) for role in read}
    return _tokens(read.total(), written.total()) | {"completion_tokens_details": details, "by_role": by_role}


def _tokens(read: int, written: int) -> dict[str, Any]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _choice(reply: ChainReply, stop: Sequence[str], close: str) -> dict[str, Any]:
    """A choice: the text after the thought up to the first of the texts `stop`, without the blank lines between both."""
    text = None if reply.answer is None else reply.answer.lstrip("\n")
    answer = text and text[: min((place for each in stop if (place := text.find(each)) >= 0), default=len(text))]
    whole = answer is not None and (not reply.cut or answer != text)
    message = {"role": "assistant", "content": answer, "reasoning_content": reply.thought.removesuffix(close) or None, "refusal": None}
    return {"message": message, "finish_reason": "stop" if whole else "length"}
