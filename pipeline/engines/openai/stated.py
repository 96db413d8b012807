"""Token counts and times that a server states with its answer. Raw JSON enters, `Usage` and `Timing` leave.

None of it is the answer, so that none of it makes an answer invalid: a count or a time that is missing, of a wrong type or cannot be
true is set aside, and the tokens are counted here. Pure.
"""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Raw, Struct

from pipeline.engine import Request, Timing, Usage
from pipeline.engines.openai.client import read_json
from pipeline.engines.openai.request import candidates_asked
from pipeline.engines.validate import flaw_in_timing, flaw_in_usage

AGREEING = 256
"""One in `AGREEING` tokens may be counted differently than here."""
_MAX_NAME_CHARS = 300
Count = Annotated[int, Meta(ge=0, lt=1 << 31)]


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


class Metrics(Struct, frozen=True):
    """vLLM's times of one request, where it is started with `--enable-per-request-metrics`."""

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    queue_time_ms: float | None = None


class Timings(Struct, frozen=True):
    """llama.cpp's times of one request."""

    prompt_ms: float | None = None
    predicted_ms: float | None = None


def read_usage(raw: Raw) -> UsageBody:
    """The token counts of one answer; empty where they cannot be read."""
    found: UsageBody = read_json(raw, UsageBody | None) or UsageBody()
    return found


def flaw_in_prompt_tokens(sent: int, stated: int, copies: int = 1, *, exact: bool) -> str | None:
    """The flaw of a prompt of `sent` tokens of which a server has read as many as are `stated`, with both numbers, as the end of a
    sentence about the server; None where nothing is.

    Some servers count the prompt once for each of its `copies`. Where it was sent as a text (not `exact`), one token in `AGREEING` may be
    counted otherwise: servers' own tokenizers differ from that of the model's files in rare characters.
    """
    if any(abs(stated - sent * each) <= (0 if exact else sent * each // AGREEING) for each in (1, copies)):
        return None
    fewer = "it truncates prompts" if stated < sent else "it wraps prompts in a chat template or adds special tokens"
    return f"reports {stated:,} tokens for a prompt of {sent:,}: {fewer}, or `tokenizer` does not match its model"


def usage_of(request: Request, stated: Sequence[UsageBody], sampled: int) -> Usage:
    """The counts that the server stated with its answers to `request`; where it states none, or some that cannot be true, those of the
    request and of the `sampled` tokens.

    The prompt counts once, however often it was sent, and the answer that had the least of it in the cache says what was there before all
    of them. No server reads its cache for a scoring; for several candidates in one answer vLLM states what the last of them found, which
    the others had just computed.
    """
    given = len(request.prompt_ids) + len(request.scored_ids)
    own = Usage(input_tokens=given, output_tokens=0 if request.scored_ids else sampled)
    read = stated[0].prompt_tokens or given
    counted = [one.completion_tokens for one in stated if one.completion_tokens is not None]
    cached = None
    states_what_was_cached = not request.scored_ids and candidates_asked(request) == len(stated)
    if states_what_was_cached and any(one.cached_tokens is not None for one in stated):
        cached = min(read, *(one.cached_tokens or 0 for one in stated))
    usage = Usage(
        input_tokens=read,
        cached_input_tokens=cached,
        output_tokens=own.output_tokens if request.scored_ids or len(counted) < len(stated) else sum(counted),
    )
    return own if usage.output_tokens < own.output_tokens or flaw_in_usage(usage, request) else usage


def model_of(raw: Raw) -> str | None:
    """The model that a server says has answered; None where it does not say."""
    name: str | None = read_json(raw, str | None)
    return name[:_MAX_NAME_CHARS] if name else None


def timing_of(metrics: Raw, timings: Raw) -> Timing:
    """The times that vLLM or llama.cpp states with one answer; empty for other servers, and where they cannot be true."""
    vllm: Metrics | None = read_json(metrics, Metrics | None)
    llama: Timings | None = read_json(timings, Timings | None)
    timing = Timing()
    if vllm is not None:
        queue, first = _seconds(vllm.queue_time_ms), _seconds(vllm.time_to_first_token_ms)
        prefill = None if queue is None or first is None else max(0.0, first - queue)
        decode = _seconds(vllm.generation_time_ms)
        timing = Timing(queue_time_s=queue, prefill_time_s=prefill, decode_time_s=decode, time_to_first_token_s=first)
    elif llama is not None:
        timing = Timing(prefill_time_s=_seconds(llama.prompt_ms), decode_time_s=_seconds(llama.predicted_ms))
    return Timing() if flaw_in_timing(timing) else timing


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else max(0.0, milliseconds / 1000)
