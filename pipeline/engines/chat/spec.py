"""The keys that an engines file may hold for an engine `chat`."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from pipeline.graph.spec import Count, EngineSpec, PositiveSeconds, Tokens

ExtraNumber = Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]


class ChatSpec(EngineSpec, frozen=True, kw_only=True, tag="chat"):
    """A server that has chat completions and nothing else, such as hosted models. It writes whole thoughts, whole responses and answers,
    and judges by the text of its reply; it cannot write on in a thought that was begun, so no stage that works step by step can use it.
    Needs the extra `openai`."""

    model: str
    """The name under which the server serves the model."""
    base_url: str
    """Up to and including `/v1`."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key, never the key itself; by default no key is sent."""
    max_model_len: Annotated[int, Meta(ge=16, le=1_000_000_000)]
    """Context length in tokens. The server's own tokens are not known here: three bytes of text are taken for one."""
    max_tokens_key: str = "max_tokens"
    """How the server calls the limit of a reply's tokens; some want `max_completion_tokens`."""
    send_sampling: bool = True
    """Send `temperature`, `top_p` and `seed`; some models take none of them."""
    thinking_tokens: Tokens = 2048
    """Most tokens that a reply may have before it names an option or gives a final answer: a reasoning model thinks before each."""
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 8
    """See `EngineSpec.max_retries`; servers are often unavailable for a moment, and a verdict without an option is asked for again."""
    hang_s: PositiveSeconds = 1800.0
    """Calls that have been in flight for this many seconds are given up once nothing has arrived from the server for as long. Answers
    arrive as a whole: this is also the longest that a call may take while no other is answered."""
    startup_timeout_s: PositiveSeconds = 600.0
    """Longest time that the server may take to list its models, before the run starts."""
    extra: Mapping[str, bool | ExtraNumber | float | str] = {}
    """Further fields of every request, such as `reasoning_effort: high`."""
    max_in_flight: Count = 64
    """Most requests sent to the server at once."""
