"""The keys that an engines file may hold for an engine `openai`."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from pipeline.graph.json_keys import check_json, check_template_arguments
from pipeline.graph.spec import AdapterName, EngineSpec, PositiveSeconds

_OWN = (
    "model prompt max_tokens temperature top_p top_k min_p seed stop n logprobs stream stream_options echo suffix best_of logit_bias "
    "priority prompt_logprobs skip_special_tokens add_special_tokens include_stop_str_in_output no_stop_trim return_tokens_as_token_ids "
    "return_token_ids logprob_token_ids allowed_token_ids stop_token_ids"
)
RESERVED = {
    **dict.fromkeys(_OWN.split(), "each request has its own"),
    "chat_template_kwargs": "the template is rendered here; name it beside `extra`",
}
"""The fields that `extra` must not hold, and why."""


class OpenAISpec(EngineSpec, frozen=True, kw_only=True, tag="openai"):
    """One or more servers with OpenAI's completions endpoint: vLLM, SGLang, llama.cpp, hosted ones. Needs the extra `openai`."""

    model: str
    """The name under which the server serves the model."""
    base_url: str | tuple[str, ...]
    """Up to and including `/v1`; several are replicas of one another: each gets calls as long as it answers, and a call that fails at one
    goes to another at once."""
    adapters: Mapping[AdapterName, str] = {}
    """What a stage may name under `adapter`, and the name under which every server serves `model` with that adapter: with vLLM
    `--lora-modules NAME=FOLDER`."""
    tokenizer: str | None = None
    """Folder, hub name or `bundled:NAME` of the model's tokenizer and chat template; by default `model`."""
    chat_template_kwargs: Mapping[str, Any] = {}
    """What the chat template of `tokenizer` is told beside the messages, such as `enable_thinking: false` for Qwen3."""
    extra: Mapping[str, Any] = {}
    """Further fields of every request, any JSON, such as `repetition_penalty: 1.05`."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key, never the key itself; by default no key is sent."""
    max_model_len: Annotated[int, Meta(ge=16, le=1_000_000_000)] | None = None
    """Context length in tokens; by default what the server says."""
    prompts: Literal["auto", "ids", "text"] = "auto"
    """How prompts are sent; `auto`: as token ids where the server takes them and returns ids, else as text. In a text a space follows the
    first character of a special token that a problem or an answer spells out, or the server would take it for the token."""
    adds_bos: bool | None = None
    """Whether the server puts a beginning-of-sequence token before a prompt that it takes as a text: the prompt is then sent without its
    own. By default what the server's count of a prompt's tokens shows, which not every server states."""
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 8
    """See `EngineSpec.max_retries`; servers are often unavailable for a moment. Moves to other replicas do not count. A chain fails only if
    some replica answers other requests; else its call waits for that."""
    hang_s: PositiveSeconds = 1800.0
    """Calls that have been in flight for this many seconds are given up once nothing has arrived from the servers for as long. Answers
    arrive as a whole, unless they may be interrupted: this is also the longest that a call may take while no other is answered."""
    reconnect_s: PositiveSeconds = 180.0
    """When no replica has answered for this long, or all have refused everything (a key that has expired) or sent no valid answer (a page
    to sign in) for this long or 5 s, the engine counts as dead: the run stops and can be resumed."""
    startup_timeout_s: PositiveSeconds = 600.0
    """Longest time that the servers may take to say what they can do, before the run starts."""

    def __post_init__(self) -> None:
        """Refuse what cannot be the name of a variable, and may be the key itself, without repeating it; and fields that a request has."""
        check_template_arguments(self.chat_template_kwargs)
        check_json("extra", self.extra, RESERVED)
        if self.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            raise ValueError("api_key_env is the name of the environment variable that holds the key, such as OPENAI_API_KEY")
