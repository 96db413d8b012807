"""The keys that an engines file may hold for an engine `vllm`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from pipeline.graph.json_keys import check_template_arguments
from pipeline.graph.spec import AdapterName, RestartableSpec

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "ngram": ("prompt_lookup_max", "prompt_lookup_min"),
    "draft_model": ("model",),
    "eagle": ("model",),
    "eagle3": ("model",),
    "suffix": (
        "suffix_decoding_max_tree_depth",
        "suffix_decoding_max_cached_requests",
        "suffix_decoding_max_spec_factor",
        "suffix_decoding_min_token_prob",
    ),
}
"""The keys that each method of speculation has in addition to `num_speculative_tokens`."""
_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "ngram": {"num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 1},
    "suffix": {},
}
"""Of the methods with other defaults than five tokens; what is left out is vLLM's choice."""


class SpeculativeSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token-level speculation inside the engine, in vLLM's words (SpecReason 4.2, SpecCoT A.3)."""

    method: Literal["ngram", "draft_model", "eagle", "eagle3", "suffix"]
    """`ngram`: what followed the same tokens earlier in the prompt. `draft_model`: a small model of the same vocabulary, with embeddings of
    the target's size. `eagle`, `eagle3`: a head trained on the target's hidden states (EAGLE, Li et al., 2024). `suffix`: what
    followed the same tokens earlier in this and other answers (SuffixDecoding, Oliaro et al., 2024); needs arctic-inference."""
    num_speculative_tokens: Annotated[int, Meta(ge=1, le=64)] | None = None
    """Tokens proposed at a time; null: 5; with method `suffix` vLLM's choice, at most the depth of its trees."""
    model: str | None = None
    """With method `draft_model` the small model, with `eagle` and `eagle3` the head: a folder, a hub name, or `bundled:NAME`."""
    prompt_lookup_max: Annotated[int, Meta(ge=1, le=64)] | None = None
    """Maximum length, in tokens, of the sequences that method `ngram` looks up; null: 4."""
    prompt_lookup_min: Annotated[int, Meta(ge=1, le=64)] | None = None
    """Minimum length, in tokens, of the sequences that method `ngram` looks up; null: 1."""
    suffix_decoding_max_tree_depth: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """With method `suffix`: maximum number of tokens of a match and the proposal after it; null: 24."""
    suffix_decoding_max_cached_requests: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    """With method `suffix`: number of answers kept for look-ups; 0: only the request's own prompt and answer; null: 10,000."""
    suffix_decoding_max_spec_factor: Annotated[float, Meta(ge=0, le=1024)] | None = None
    """With method `suffix`: maximum number of tokens proposed per token of a match; null: 1."""
    suffix_decoding_min_token_prob: Annotated[float, Meta(ge=0, le=1)] | None = None
    """With method `suffix`: minimum share of the matches that continue with a token that is proposed; null: 0.1."""

    def __post_init__(self) -> None:
        """Reject a method without the model that it needs, and keys that it does not have."""
        for name in dict.fromkeys(name for options in OPTIONS.values() for name in options):
            if getattr(self, name) is not None and name not in OPTIONS[self.method]:
                methods = " or ".join(method for method, options in OPTIONS.items() if name in options)
                raise ValueError(f"method {self.method} does not accept `{name}`; leave it out, or use method {methods}")
        if "model" in OPTIONS[self.method] and self.model is None:
            raise ValueError(f"method {self.method} needs a `model`; name one, or use method ngram")
        terms = self.terms()
        if terms.get("prompt_lookup_min", 1) > (most := terms.get("prompt_lookup_max", 1)):
            raise ValueError(f"`prompt_lookup_min` is {terms['prompt_lookup_min']}, more than `prompt_lookup_max`, which is {most}")

    @property
    def whole_model(self) -> str | None:
        """The model inside the engine that has all of a model's tensors; a head shares some of the target's."""
        return self.model if self.method == "draft_model" else None

    def terms(self) -> dict[str, Any]:
        """The arguments for vLLM: the keys that are set, and this project's defaults."""
        names = ("num_speculative_tokens", *OPTIONS[self.method])
        stated = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {"method": self.method} | dict(_DEFAULTS.get(self.method, {"num_speculative_tokens": 5})) | stated


class VllmSpec(RestartableSpec, frozen=True, kw_only=True, tag="vllm"):
    """vLLM in a worker process. Needs the extra `vllm` or, without a GPU, vLLM's CPU build."""

    model: str
    """A folder, a hub name, or `bundled:NAME` for a model of this package."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Number type of the weights; `auto`: that of the checkpoint."""
    quantization: str | None = None
    """vLLM's name of the method (`fp8`, `awq`, `gptq`, ...); null: as the model's configuration says."""
    load_format: Literal["auto", "dummy", "safetensors", "pt"] = "auto"
    """`dummy`: random weights of the model's shape, for throughput experiments without a download."""
    max_model_len: Annotated[int, Meta(ge=16, le=1_000_000_000)] | None = None
    """Context length in tokens; null: the model's own."""
    max_num_seqs: Annotated[int, Meta(ge=1, le=65536)] = 256
    """Maximum number of sequences computed together; a request for n candidates counts as n."""
    max_num_batched_tokens: Annotated[int, Meta(ge=16, le=1_000_000_000)] | None = None
    """Maximum number of tokens computed in one iteration; null: vLLM's default for servers on that GPU (8,192 on an H100, 2,048 on an A100
    or A6000), without a GPU 8,192 or a whole context."""
    devices: tuple[Annotated[int, Meta(ge=0, le=65535)], ...] = ()
    """Indices of GPUs; empty: the first `tensor_parallel_size`."""
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=64)] = 1
    """Number of GPUs that every layer is split over."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    """Share of each GPU's memory for weights, activations and cache. Engines that share a GPU must all state it; null: 0.9
    for an engine alone."""
    kv_cache_gib: Annotated[float, Meta(gt=0.0)] | None = None
    """Size of the KV cache; null: what the share of the GPU leaves, without a GPU 1 GiB."""
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"] = "auto"
    """Number type of the KV cache; `auto`: that of the weights."""
    enable_prefix_caching: bool = True
    """Reuse KV blocks of earlier prompts."""
    enable_chunked_prefill: bool | None = None
    """Null: on with a GPU. Without one it cannot be on: a seeded request whose prefill is split crashes vLLM 0.32 there."""
    enforce_eager: bool | None = None
    """No CUDA graphs and no compilation; null: without a GPU only."""
    lora_path: str | None = None
    """LoRA adapter of all requests whose stage names none: a folder, or `bundled:NAME`."""
    adapters: Mapping[AdapterName, str] = {}
    """LoRA adapters by the names that stages use under `adapter`: folders as PEFT saves them, or `bundled:NAME`."""
    speculative_config: SpeculativeSpec | None = None
    """Token-level speculation inside the engine; null: none."""
    core: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """Without a GPU: the first of the `threads` cores that it computes on; null: separate cores if there are enough."""
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Without a GPU: number of cores."""
    chat_template_kwargs: Mapping[str, Any] = {}
    """Arguments of the chat template, such as `enable_thinking: false` for Qwen3."""
    trust_remote_code: bool = False
    """Run code that comes with the model."""

    def __post_init__(self) -> None:
        """Reject arguments that cannot be passed to a chat template, and GPUs that are not one for each part of the model."""
        check_template_arguments(self.chat_template_kwargs)
        if self.devices and len(set(self.devices)) != self.tensor_parallel_size:
            raise ValueError(f"`devices` names {len(set(self.devices))} GPUs, but `tensor_parallel_size` is {self.tensor_parallel_size}")
        if len(set(self.devices)) < len(self.devices):
            raise ValueError("`devices` names a GPU twice")

    @property
    def cannot(self) -> tuple[str, ...]:
        return self.unable(on_cpu=False)

    def unable(self, *, on_cpu: bool) -> tuple[str, ...]:
        """The fact `cannot` of such an engine.

        With token-level speculation vLLM rejects `min_p` (`SamplingParams._validate_spec_decode`), and without a GPU `top_k` crashes vLLM
        0.32: its rejection sampler looks for the largest k of no sequence.
        """
        if self.speculative_config is None:
            return ()
        return ("top_k", "min_p") if on_cpu else ("min_p",)

    @property
    def adapter_paths(self) -> tuple[str, ...]:
        """The folders of all adapters that the engine holds, each once: those of `adapters` and `lora_path`."""
        return tuple(dict.fromkeys([*self.adapters.values(), *([self.lora_path] if self.lora_path else [])]))
