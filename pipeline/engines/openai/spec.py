"""The keys that an engines file may hold for an engine `openai`."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta

from pipeline.graph.spec import AdapterName, EngineSpec, PositiveSeconds, check_reserved

_OWN = (
    "model prompt max_tokens temperature top_p top_k min_p seed stop n logprobs stream stream_options echo suffix best_of logit_bias "
    "prompt_logprobs skip_special_tokens add_special_tokens include_stop_str_in_output return_tokens_as_token_ids "
    "return_token_ids logprob_token_ids allowed_token_ids stop_token_ids"
)
RESERVED = {
    **dict.fromkeys(_OWN.split(), "each request has its own"),
    "chat_template_kwargs": "the template is rendered here; set it next to `extra`",
}
"""The fields that `extra` must not hold, and why."""


class OpenAISpec(EngineSpec, frozen=True, kw_only=True, tag="openai"):
    """A server with OpenAI's completions endpoint: vLLM, SGLang, llama.cpp, hosted ones. Needs the extra `openai`."""

    model: str
    """The name under which the server serves the model."""
    base_url: str
    """Address up to and including `/v1`."""
    api_key_env: str | None = None
    """Name of the environment variable with the API key, never the key itself; null: no key is sent."""
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 8
    """How often a call is sent again after it timed out, the server was unavailable, or its answer was invalid. A chain fails only while
    the server answers other requests; otherwise its call waits for the server."""
    hang_s: PositiveSeconds = 1800.0
    """Seconds without an answer of the server after which calls in flight for as long time out."""
    reconnect_s: PositiveSeconds = 180.0
    """Seconds without a valid answer from the server after which the run stops, also if it refuses everything (an expired key); it can be
    resumed."""
    chat_template_kwargs: Mapping[str, Any] = {}
    """Arguments of the chat template, such as `enable_thinking: false` for Qwen3."""
    extra: Mapping[str, Any] = {}
    """Additional fields of every request, any JSON, such as `repetition_penalty: 1.05` or `reasoning: {effort: high}`."""
    adapters: Mapping[AdapterName, str] = {}
    """LoRA adapters by the names that stages use under `adapter`: the name under which the server serves `model` with that adapter (vLLM:
    `--lora-modules NAME=FOLDER`)."""
    tokenizer: str | None = None
    """Folder, hub name or `bundled:NAME` of the model's tokenizer and chat template; null: `model`."""
    max_model_len: Annotated[int, Meta(ge=16, le=1_000_000_000)] | None = None
    """Context length in tokens; null: as the server reports."""
    server: Literal["auto", "vllm", "generic"] = "auto"
    """The kind of server. `vllm`: prompts and answers as token ids, log probabilities of any option, all sampling fields. `generic`: texts,
    the log probabilities of the 5 likeliest tokens, and OpenAI's own fields alone; a prompt in which a problem or an answer spells out a
    special token is refused. `auto`: `vllm` where the server says that it is vLLM (`owned_by`), else `generic`."""

    def __post_init__(self) -> None:
        """Reject further fields that every request has, and what may hold a key or a password, which is not repeated."""
        check_reserved("extra", self.extra, RESERVED)
        if flaw := flaw_in_url(self.base_url):
            raise ValueError(f"base_url {flaw}")
        if self.api_key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            raise ValueError("api_key_env is the name of the environment variable that holds the key, such as OPENAI_API_KEY")


def flaw_in_url(url: str) -> str | None:
    """Why `url` is no base URL, in one clause that repeats no password; None where it is one."""
    parts = urlsplit(url)
    if parts.username is not None or parts.query or parts.fragment:
        what = "must be a plain URL, without a user, a password or a query, because run.json records it"
        return f"{what}; api_key_env names the variable that holds a key"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{url!r} is not a URL such as http://127.0.0.1:8000/v1"
    endpoint = re.search(r"(/chat)?/completions/*$", url)
    return endpoint and f"{url!r} names an endpoint: leave out {endpoint[0].rstrip('/')}, so {url[: endpoint.start()]}"
