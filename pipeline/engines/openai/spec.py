"""The keys that an engines file may hold for an engine `openai`."""

from typing import Annotated, Literal

from msgspec import Meta

from pipeline.graph.spec import EngineSpec, PositiveSeconds


class OpenAISpec(EngineSpec, frozen=True, kw_only=True, tag="openai"):
    """One or more servers with OpenAI's completions endpoint: vLLM, SGLang, llama.cpp, hosted ones. Needs the extra `openai`."""

    model: str
    """The name under which the server serves the model."""
    base_url: str | tuple[str, ...]
    """Up to and including `/v1`; several are replicas of one another."""
    tokenizer: str | None = None
    """Folder, hub name or `bundled:NAME` of the model's tokenizer and chat template; by default `model`."""
    api_key_env: str | None = None
    """Environment variable that holds the key; by default no key is sent."""
    max_model_len: Annotated[int, Meta(ge=16, le=1_000_000_000)] | None = None
    """Context length in tokens; by default what the server says."""
    prompts: Literal["auto", "ids", "text"] = "auto"
    """How prompts are sent; `auto`: as token ids where the server takes them and returns ids, else as text."""
    max_retries: Annotated[int, Meta(ge=0, le=100)] = 8
    """See `EngineSpec.max_retries`; servers are often unavailable for a moment."""
    reconnect_s: PositiveSeconds = 180.0
    """When no replica has answered for this long, the engine counts as dead."""
