"""The JSON of a server's answer as structs: bytes enter, a `ResponseBody` leaves, or `NoAnswer` says what is wrong.

Counts, times and names are not the answer, so that none of them makes an answer invalid: one that is missing, of a wrong type or cannot be
true is set aside. Whatever the bytes are, nothing but `NoAnswer` is raised. Pure.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from pipeline.engine import Timing
from pipeline.engines.openai.client import UNREADABLE, NoAnswer, Reply, read_json
from pipeline.engines.openai.replies import NULL, error_within, refusal_of
from pipeline.engines.validate import flaw_in_timing

Stop = str | int | None
"""What ended a candidate: a stop string, a stop id, or an end of sequence."""
Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
_MAX_NAME_CHARS = 300


class TokenLogprob(Struct, frozen=True):
    """One token in the newer form of `Logprobs`, `content`, which llama.cpp uses."""

    logprob: float | None = None
    token: str = ""
    id: int | None = None
    top_logprobs: "tuple[TokenLogprob, ...]" = ()


class Logprobs(Struct, frozen=True):
    """Log probabilities of one candidate's tokens: in lists, one entry a token, or in the newer form, `content`."""

    token_logprobs: tuple[float | None, ...] | None = None
    top_logprobs: tuple[dict[str, float | None] | None, ...] | None = None
    content: tuple[TokenLogprob, ...] | None = None


class PromptLogprob(Struct, frozen=True):
    """The log probability of one token at one place of the prompt, as vLLM gives it."""

    logprob: float


class CompletionChoice(Struct, frozen=True):
    """One candidate as the server sent it (OpenAI's word for it is choice)."""

    index: int | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: tuple[Count, ...] | None = None
    logprobs: Logprobs | None = None
    stop_reason: Stop | UnsetType = UNSET
    """vLLM's field for the stop string or stop id that ended it; None for an end of sequence."""
    matched_stop: Stop | UnsetType = UNSET
    """SGLang's field for it, which also holds the id of an end of sequence."""
    prompt_logprobs: tuple[dict[str, PromptLogprob] | None, ...] | None = None
    prompt_token_ids: Raw = NULL
    """The prompt, which vLLM repeats with every candidate."""
    error: Raw = NULL
    """The reason why it is no whole answer, of OpenRouter."""

    @property
    def reported_stop(self) -> Stop | UnsetType:
        """The stop that ended it as the server says; `UNSET` where it does not say."""
        return self.matched_stop if self.stop_reason is UNSET else self.stop_reason


class ResponseBody(Struct, frozen=True):
    """The body of an answer; what is no candidate is decoded when it is asked for."""

    choices: tuple[CompletionChoice, ...]
    usage: Raw = NULL
    model: Raw = NULL
    system_fingerprint: Raw = NULL
    metrics: Raw = NULL
    timings: Raw = NULL

    @property
    def answered_by(self) -> str | None:
        """The model that the server says has answered; None where it does not say."""
        name: str | None = read_json(self.model, str | None)
        return name[:_MAX_NAME_CHARS] if name else None

    @property
    def counted(self) -> "UsageBody":
        """The token counts that the server states; empty where they cannot be read."""
        found: UsageBody = read_json(self.usage, UsageBody | None) or UsageBody()
        return found

    @property
    def timing(self) -> Timing:
        """The times that vLLM (`--enable-per-request-metrics`) or llama.cpp states; empty for others, and where they cannot be true."""
        vllm, llama = (read_json(raw, dict[str, Any]) or {} for raw in (self.metrics, self.timings))
        queue, first, decode = (_seconds(vllm, name) for name in ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms"))
        timing = Timing(
            queue_time_s=queue,
            prefill_time_s=_seconds(llama, "prompt_ms") if queue is None or first is None else max(0.0, first - queue),
            decode_time_s=_seconds(llama, "predicted_ms") if decode is None else decode,
            time_to_first_token_s=first,
        )
        return Timing() if flaw_in_timing(timing) else timing


class PromptDetails(Struct, frozen=True):
    """Details of the prompt's tokens."""

    cached_tokens: Count | None = None
    """Those that were in the server's prefix cache."""


class UsageBody(Struct, frozen=True):
    """The server's token counts of one answer."""

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that were in the server's prefix cache; None where it does not say."""
        return None if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


def _seconds(stated: dict[str, Any], name: str) -> float | None:
    """A time that a server states in milliseconds."""
    value = stated.get(name)
    return max(0.0, value / 1000) if isinstance(value, int | float) else None


def decode_reply(reply: Reply) -> ResponseBody:
    """The answer that a reply holds. Raises `NoAnswer` for a refusal, JSON that is no completion, what is not JSON, and an error
    that it holds."""
    if not reply.ok:
        raise refusal_of(reply)
    if (error_inside := error_within(reply.content)) is not None:
        raise error_inside
    try:
        return msgspec.json.decode(reply.content, type=ResponseBody)
    except msgspec.ValidationError as error:
        failure = NoAnswer("malformed", f"is not a completion: {error}")
    except RecursionError:
        failure = NoAnswer("malformed", "is not a completion: it is nested too deeply")
    except UNREADABLE as error:
        failure = NoAnswer("unreadable", f"sent an answer that is not JSON: {error}")
    raise failure
