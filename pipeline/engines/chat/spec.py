"""The keys that an engines file may hold for an engine `chat`."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from pipeline.graph.json_keys import check_json, check_template_arguments
from pipeline.graph.spec import Count, EngineSpec, PositiveSeconds, Tokens


class ChatSpec(EngineSpec, frozen=True, kw_only=True, tag="chat"):
    """A server that only has chat completions. It writes whole thoughts, responses and answers, and judges by the text of its reply; it
    cannot continue a partial reply, so stages that work step by step cannot use it. Needs the extra `openai`."""

    model: str
    """The name under which the server serves the model."""
    base_url: str
    """Address up to and including `/v1`."""
    api_key_env: str | None = None
    """Name of the environment variable with the API key, never the key itself; null: no key is sent."""
    max_model_len: Annotated[int, Meta(ge=16, le=1_000_000_000)]
    """Context length in tokens. Tokens are estimated: three bytes of text count as one."""
    max_tokens_key: str = "max_tokens"
    """The server's name for the limit of a reply's tokens; some expect `max_completion_tokens`."""
    send_sampling: bool = True
    """Send `temperature`, `top_p` and `seed`; some models reject them."""
    thinking_tokens: Tokens = 2048
    """Maximum number of tokens that a reasoning model may write before it names an option or gives a final answer."""
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 8
    """How often a call is sent again after it timed out, the server was unavailable, or a verdict named no option."""
    hang_s: PositiveSeconds = 1800.0
    """Seconds without anything arriving from the server after which calls in flight for as long time out. Answers arrive as a whole, so
    this is also the time limit of a call while no other is answered."""
    startup_timeout_s: PositiveSeconds = 600.0
    """Time limit in seconds for the server to list its models, before the run starts."""
    chat_template_kwargs: Mapping[str, Any] = {}
    """Arguments that the server passes to the chat template, such as `enable_thinking: false` for Qwen3."""
    extra: Mapping[str, Any] = {}
    """Additional fields of every request, any JSON, such as `reasoning_effort: high` or `reasoning: {effort: high}`."""
    max_in_flight: Count = 64
    """Maximum number of requests sent to the server at once."""

    def __post_init__(self) -> None:
        """Reject fields that every request already has."""
        check_template_arguments(self.chat_template_kwargs)
        own = dict.fromkeys(
            ("model", "messages", "n", "stream", "stream_options", "max_tokens", self.max_tokens_key), "each request has its own"
        )
        if self.send_sampling:
            own |= dict.fromkeys(("temperature", "top_p", "seed"), "the graph sets it; `send_sampling: false` leaves it to the server")
        if self.chat_template_kwargs:
            own["chat_template_kwargs"] = "it is also set next to `extra`; set it once"
        check_json("extra", self.extra, own)
        if "chat_template_kwargs" in self.extra:
            told = self.extra["chat_template_kwargs"]
            if not isinstance(told, Mapping):
                raise ValueError("extra.chat_template_kwargs must be a mapping, such as {enable_thinking: false}")
            check_template_arguments(told)

    @property
    def fields(self) -> dict[str, Any]:
        """The further fields of every request."""
        return {**self.extra, **({"chat_template_kwargs": self.chat_template_kwargs} if self.chat_template_kwargs else {})}

    @property
    def cannot(self) -> tuple[str, ...]:
        """A verdict is read from a reply, not from log probabilities of the options."""
        return ("continues", "scoring", "top_k", "min_p", "interrupt", *(() if self.send_sampling else ("top_p", "seeds")))
