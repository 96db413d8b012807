"""The keys that an engines file may hold for an engine `chat`."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from pipeline.graph.json_keys import check_json, check_template_arguments
from pipeline.graph.spec import Count, EngineSpec, PositiveSeconds, Tokens


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
    chat_template_kwargs: Mapping[str, Any] = {}
    """What the server tells the model's chat template beside the messages, such as `enable_thinking: false` for Qwen3."""
    extra: Mapping[str, Any] = {}
    """Further fields of every request, any JSON, such as `reasoning_effort: high` or `reasoning: {effort: high}`."""
    max_in_flight: Count = 64
    """Most requests sent to the server at once."""

    def __post_init__(self) -> None:
        """Refuse fields that a request has without them."""
        check_template_arguments(self.chat_template_kwargs)
        own = dict.fromkeys(
            ("model", "messages", "n", "stream", "stream_options", "max_tokens", self.max_tokens_key), "each request has its own"
        )
        if self.send_sampling:
            own |= dict.fromkeys(("temperature", "top_p", "seed"), "the graph says it; `send_sampling: false` leaves it to the server")
        if self.chat_template_kwargs:
            own["chat_template_kwargs"] = "it stands beside `extra` as well; name it once"
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
        """See `EngineSpec.cannot`: a verdict is read from a reply, in place of log probabilities of the options."""
        return ("continues", "scoring", "top_k", "min_p", "interrupt", *(() if self.send_sampling else ("top_p", "seeds")))
