"""The answer to a request as the OpenAI API gives it: the finished chains of its problem enter; a chat completion leaves."""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from pipeline.graph.prompts import THINK_CLOSE


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


class ReplyMessage(Struct, frozen=True):
    """What the assistant says."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None
    refusal: None = None


class ReplyChoice(Struct, frozen=True):
    """The response of one chain."""

    index: int
    message: ReplyMessage
    finish_reason: Literal["stop", "length"]
    logprobs: None = None


class ReasoningTokens(Struct, frozen=True):
    """The part of the sampled tokens that is the thought."""

    reasoning_tokens: int


class RoleUsage(Struct, frozen=True):
    """Tokens of the calls to one engine."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatUsage(Struct, frozen=True):
    """Tokens of all calls to all engines. What a request takes is more than its prompt and its answer: candidates that are rejected count,
    and every call reads its prompt, most of which is in the engine's cache."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: ReasoningTokens
    by_role: dict[str, RoleUsage]


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """The answer to a request."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ReplyChoice]
    usage: ChatUsage


def without_mark(text: str, mark: str) -> str:
    """A step, or a whole thought, without the tag that closes it, which is none of its words."""
    return text.removesuffix(mark)


def completion(
    replies: Sequence[ChainReply], *, name: str, created: int, model: str, stop: Sequence[str] = (), close: str = THINK_CLOSE
) -> ChatCompletion:
    """The answer that consists of these `replies`, a choice each. `name` is its id, `created` when it was there in seconds since 1970,
    `model` what wrote it; the answers end at the texts of `stop`, and `close` is the closing reasoning tag."""
    return ChatCompletion(
        id=name,
        created=created,
        model=model,
        choices=[_choice(index, reply, stop, close) for index, reply in enumerate(replies)],
        usage=usage_of(replies),
    )


def usage_of(replies: Sequence[ChainReply]) -> ChatUsage:
    """The tokens of all `replies` together."""
    roles = dict.fromkeys(role for reply in replies for role in reply.input_tokens)
    by_role = {role: _role_usage([(each.input_tokens[role], each.output_tokens[role]) for each in replies]) for role in roles}
    read, written = (sum(getattr(each, name) for each in by_role.values()) for name in ("prompt_tokens", "completion_tokens"))
    return ChatUsage(read, written, read + written, ReasoningTokens(sum(reply.thought_tokens for reply in replies)), by_role)


def content_of(answer: str, stop: Sequence[str] = ()) -> str:
    """The text after a thought up to the first of the texts `stop` in it, without the blank lines between both."""
    text = answer.lstrip("\n")
    return text[: min((place for each in stop if (place := text.find(each)) >= 0), default=len(text))]


def _role_usage(pairs: Sequence[tuple[int, int]]) -> RoleUsage:
    read, written = (sum(numbers) for numbers in zip(*pairs, strict=True))
    return RoleUsage(read, written, read + written)


def _choice(index: int, reply: ChainReply, stop: Sequence[str], close: str) -> ReplyChoice:
    """A choice; it stopped where the answer has an end of its own, or one of the texts `stop`."""
    answer = None if reply.answer is None else content_of(reply.answer, stop)
    whole = answer is not None and (not reply.cut or answer != content_of(reply.answer or ""))
    thought = without_mark(reply.thought, close) or None
    return ReplyChoice(index, ReplyMessage("assistant", answer, thought), "stop" if whole else "length")
