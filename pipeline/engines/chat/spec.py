"""The keys that an engines file may hold for an engine `chat`."""

from collections.abc import Mapping
from typing import Any

from pipeline.engines.openai.spec import ContextTokens, ServedSpec
from pipeline.graph.json_keys import check_json, check_template_arguments
from pipeline.graph.spec import Tokens


class ChatSpec(ServedSpec, frozen=True, kw_only=True, tag="chat"):
    """Servers that only have chat completions. They write whole thoughts, responses and answers, and judge by the text of a reply; they
    cannot continue a partial reply, so stages that work step by step cannot use them. Needs the extra `openai`."""

    max_model_len: ContextTokens
    """Context length in tokens. Tokens are estimated: three bytes of text count as one."""
    max_tokens_key: str = "max_tokens"
    """The server's name for the limit of a reply's tokens; some expect `max_completion_tokens`."""
    send_sampling: bool = True
    """Send `temperature`, `top_p` and `seed`; some models reject them."""
    thinking_tokens: Tokens = 2048
    """Maximum number of tokens that a reasoning model may write before it names an option or gives a final answer."""

    def __post_init__(self) -> None:
        """Reject further fields that every request already has."""
        super().__post_init__()
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
