"""The keys that an engines file may hold for an engine `vllm`."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from pipeline.graph.spec import AdapterName, RestartableSpec, check_reserved

RESERVED = {
    **dict.fromkeys(("model", "trust_remote_code", "speculative_config"), "set it next to `args`"),
    **dict.fromkeys(("enable_lora", "max_loras"), "`adapters` sets it"),
    **dict.fromkeys(("served_model_name", "scheduling_policy", "max_logprobs"), "this package sets it"),
}
"""The arguments that `args` must not hold, and what sets them."""


class VllmSpec(RestartableSpec, frozen=True, kw_only=True, tag="vllm"):
    """vLLM in a worker process. Needs the extra `vllm` or, without a GPU, vLLM's CPU build."""

    model: str
    """A folder, a hub name, or `bundled:NAME` for a model of this package."""
    args: Mapping[str, Any] = {}
    """Any other arguments of vLLM's `AsyncEngineArgs`, such as `max_model_len: 8192` or `gpu_memory_utilization: 0.8`, which engines that
    share a GPU must each have. vLLM refuses what it does not know. On its CPU build the defaults are 1 GiB of KV cache, no compilation, and
    no chunked prefill, which crashes version 0.32 there."""
    speculative_config: Mapping[str, Any] | None = None
    """Token-level speculation inside the engine, in vLLM's words (SpecReason 4.2, SpecCoT A.3), such as
    `{method: ngram, num_speculative_tokens: 5, prompt_lookup_max: 4}`; its `model` may be `bundled:NAME`. Null: none."""
    devices: tuple[Annotated[int, Meta(ge=0, le=65535)], ...] = ()
    """Indices of GPUs; empty: the first `tensor_parallel_size`."""
    adapters: Mapping[AdapterName, str] = {}
    """LoRA adapters by the names that stages use under `adapter`: folders as PEFT saves them, or `bundled:NAME`. Ranks above 16 need
    `max_lora_rank` in `args`."""
    core: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """Without a GPU: the first of the `threads` cores that it computes on; null: separate cores if there are enough."""
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Without a GPU: number of cores."""
    chat_template_kwargs: Mapping[str, Any] = {}
    """Arguments of the chat template, such as `enable_thinking: false` for Qwen3."""
    trust_remote_code: bool = False
    """Run code that comes with the model."""

    def __post_init__(self) -> None:
        """Reject arguments that are set elsewhere, and GPUs that are not one for each part of the model."""
        check_reserved("args", self.args, RESERVED)
        parts = self.args.get("tensor_parallel_size", 1)
        if self.devices and not len(self.devices) == len(set(self.devices)) == parts:
            raise ValueError(f"`devices` names the GPUs {', '.join(map(str, self.devices))}, but `tensor_parallel_size` is {parts}")

    @property
    def gpus(self) -> tuple[int, ...]:
        parts = self.args.get("tensor_parallel_size", 1)
        return self.devices or tuple(range(parts if isinstance(parts, int) else 1))

    @property
    def cannot(self) -> tuple[str, ...]:
        return () if self.speculative_config is None else ("min_p",)  # `SamplingParams._validate_spec_decode` of vLLM
