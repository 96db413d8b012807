"""What a completions endpoint answers, as far as it is used: vLLM, SGLang, llama.cpp and hosted ones. Bytes enter, Structs leave."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType


class Malformed(Exception):
    """The answer is not one to the request; the text says why."""


class Aborted(Exception):
    """The server gave the request up: it may be sent again."""


class Entry(Struct, frozen=True):
    """A token in the newer form of log probabilities, which llama.cpp gives."""

    logprob: float | None = None
    token: str = ""
    id: int | None = None
    top_logprobs: "tuple[Entry, ...]" = ()


class Logprobs(Struct, frozen=True):
    """Log probabilities of a choice, in either form."""

    tokens: tuple[str | None, ...] | None = None
    token_logprobs: tuple[float | None, ...] | None = None
    top_logprobs: tuple[dict[str, float | None] | None, ...] | None = None
    content: tuple[Entry, ...] | None = None


class PromptLogprob(Struct, frozen=True):
    """vLLM: one of the tokens at one place of the prompt."""

    logprob: float


class Choice(Struct, frozen=True):
    """One candidate, as it came."""

    index: int | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: tuple[Annotated[int, Meta(ge=0, lt=1 << 31)], ...] | None = None
    logprobs: Logprobs | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    """vLLM: which stop ended it; None for an end of sequence."""
    matched_stop: str | int | UnsetType | None = UNSET
    """SGLang: the same, but an end of sequence is named too."""
    prompt_logprobs: tuple[dict[str, PromptLogprob] | None, ...] | None = None

    @property
    def told(self) -> str | int | UnsetType | None:
        """Which stop ended it, as far as the server says."""
        return self.matched_stop if self.stop_reason is UNSET else self.stop_reason


class PromptDetails(Struct, frozen=True):
    """Of the prompt's tokens, those that were in the prefix cache."""

    cached_tokens: int | None = None


class Used(Struct, frozen=True):
    """Tokens of one answer."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Metrics(Struct, frozen=True):
    """vLLM's times of one request, where it is started with `--enable-per-request-metrics`."""

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None


class Timings(Struct, frozen=True):
    """llama.cpp's times of one request."""

    prompt_ms: float | None = None
    predicted_ms: float | None = None


class Answer(Struct, frozen=True):
    """The body of an answer; what is not used is not decoded."""

    choices: tuple[Choice, ...]
    usage: Used | None = None
    system_fingerprint: str | None = None
    metrics: Metrics | None = None
    timings: Timings | None = None


_decode_answer = msgspec.json.Decoder(Answer).decode


def answer_of(content: bytes) -> Answer:
    """Decode an answer; raises `Malformed` for JSON that is none, `Aborted` for what is not JSON: it was cut short."""
    try:
        return _decode_answer(content)
    except msgspec.ValidationError as error:
        flaw = f"is not a completion: {error}"
    except msgspec.DecodeError as error:
        raise Aborted(f"sent an answer that is not JSON: {error}") from None
    raise Malformed(flaw)
