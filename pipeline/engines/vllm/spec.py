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
"""The keys that each method of speculation has beside `num_speculative_tokens`."""
_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "ngram": {"num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 1},
    "suffix": {},
}
"""Of the methods with other defaults than five tokens; what is left out is vLLM's choice."""


class SpeculativeSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token-level speculation inside one engine, in vLLM's words: the hierarchical systems of SpecReason 4.2 and SpecCoT A.3."""

    method: Literal["ngram", "draft_model", "eagle", "eagle3", "suffix"]
    """`ngram`: what followed the same tokens earlier in the prompt. `draft_model`: a small model of the same vocabulary, with embeddings of
    the target's size. `eagle`, `eagle3`: a head that was trained on the target's hidden states (EAGLE, Li et al., 2024). `suffix`: what
    followed the same tokens earlier in this and other answers (SuffixDecoding, Oliaro et al., 2024); needs arctic-inference."""
    num_speculative_tokens: Annotated[int, Meta(ge=1, le=64)] | None = None
    """Tokens proposed at a time; by default 5, and with method `suffix` at most as many as its trees are deep."""
    model: str | None = None
    """The small model of method `draft_model`, or the head of `eagle` and `eagle3`: a folder, a hub name, or `bundled:NAME`."""
    prompt_lookup_max: Annotated[int, Meta(ge=1, le=64)] | None = None
    """Longest sequence, in tokens, that method `ngram` looks up; by default 4."""
    prompt_lookup_min: Annotated[int, Meta(ge=1, le=64)] | None = None
    """Shortest sequence, in tokens, that method `ngram` looks up; by default 1."""
    suffix_decoding_max_tree_depth: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Most tokens of a match and what is proposed after it, together, of method `suffix`; by default 24."""
    suffix_decoding_max_cached_requests: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    """Answers that method `suffix` keeps to look up in; 0: only the own prompt and answer. By default 10,000."""
    suffix_decoding_max_spec_factor: Annotated[float, Meta(ge=0, le=1024)] | None = None
    """Most tokens that method `suffix` proposes for each token of a match; by default 1."""
    suffix_decoding_min_token_prob: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Method `suffix` proposes a token only if at least this share of the matches went on with it; by default 0.1."""

    @property
    def whole_model(self) -> str | None:
        """The model inside the engine that has all of a model's tensors; a head shares some of the target's."""
        return self.model if self.method == "draft_model" else None

    def terms(self) -> dict[str, Any]:
        """What vLLM is told: the keys that are set, and the defaults that are ours."""
        names = ("num_speculative_tokens", *OPTIONS[self.method])
        stated = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {"method": self.method} | dict(_DEFAULTS.get(self.method, {"num_speculative_tokens": 5})) | stated

    def foreign(self) -> dict[str, Any]:
        """The keys that are set though `method` has no such option."""
        names = {name for options in OPTIONS.values() for name in options} - set(OPTIONS[self.method])
        return {name: value for name in sorted(names) if (value := getattr(self, name)) is not None}


class VllmSpec(RestartableSpec, frozen=True, kw_only=True, tag="vllm"):
    """vLLM's `AsyncLLM`, in a worker process of its own; needs the extra `vllm` or, without a GPU, vLLM's CPU build."""

    model: str
    """A folder, a hub name, or `bundled:NAME` for a model that comes with the package."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of the weights; auto: as the checkpoint says."""
    quantization: str | None = None
    """As vLLM names it (`fp8`, `awq`, `gptq`, ...); by default what the model's own configuration says."""
    load_format: Literal["auto", "dummy", "safetensors", "pt"] = "auto"
    """`dummy`: random weights of the model's shape, for throughput work without a download."""
    max_model_len: Annotated[int, Meta(ge=16, le=1_000_000_000)] | None = None
    """Context length in tokens; by default the model's own."""
    max_num_seqs: Annotated[int, Meta(ge=1, le=65536)] = 256
    """Sequences computed together; a request of n candidates takes n."""
    max_num_batched_tokens: Annotated[int, Meta(ge=16, le=1_000_000_000)] | None = None
    """Most tokens computed in one iteration; by default what vLLM chooses for a server on that GPU (8,192 on an H100, 2,048 on an A100 or
    A6000), and without a GPU 8,192, or a whole context."""
    devices: tuple[Annotated[int, Meta(ge=0, le=65535)], ...] = ()
    """GPUs by their index; by default the first `tensor_parallel_size` of them."""
    tensor_parallel_size: Annotated[int, Meta(ge=1, le=64)] = 1
    """GPUs that share every layer."""
    gpu_memory_utilization: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    """Share of each GPU's memory for weights, activations and cache. Engines that share a GPU must all say it; one alone
    takes 0.9."""
    kv_cache_gib: Annotated[float, Meta(gt=0.0)] | None = None
    """Size of the key-value cache; by default what the share of the GPU leaves, and 1 GiB without a GPU."""
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"] = "auto"
    """Type of the KV cache; auto: as the weights."""
    enable_prefix_caching: bool = True
    """Keep KV blocks of earlier prompts."""
    enable_chunked_prefill: bool | None = None
    """By default on with a GPU. Without one it cannot be on: there a seeded request whose prefill is split kills vLLM 0.32."""
    enforce_eager: bool | None = None
    """No CUDA graphs and no compilation; by default only without a GPU."""
    lora_path: str | None = None
    """Folder of a LoRA adapter, or `bundled:NAME`, that every request uses whose stage names none."""
    adapters: Mapping[AdapterName, str] = {}
    """What a stage may name under `adapter`, and the folder of that LoRA adapter, as PEFT saves it, or `bundled:NAME`."""
    speculative_config: SpeculativeSpec | None = None
    """Token-level speculation within the engine; null: none."""
    core: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """Without a GPU: the first of the `threads` cores the engine computes on; by default cores of its own where there are enough."""
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Without a GPU: cores it computes on."""
    chat_template_kwargs: Mapping[str, Any] = {}
    """What the model's chat template is told beside the messages, such as `enable_thinking: false` for Qwen3."""
    trust_remote_code: bool = False
    """Run code that the checkpoint brings."""

    def __post_init__(self) -> None:
        """Refuse what cannot be told to a chat template."""
        check_template_arguments(self.chat_template_kwargs)

    @property
    def cannot(self) -> tuple[str, ...]:
        """See `EngineSpec.cannot`."""
        return self.unable(on_cpu=False)

    def unable(self, *, on_cpu: bool) -> tuple[str, ...]:
        """The fact `cannot` of such an engine.

        With token-level speculation vLLM refuses `min_p` (`SamplingParams._validate_spec_decode`), and without a GPU `top_k` kills
        vLLM 0.32: its rejection sampler looks for the largest k of no sequence.
        """
        if self.speculative_config is None:
            return ()
        return ("top_k", "min_p") if on_cpu else ("min_p",)

    @property
    def adapter_paths(self) -> tuple[str, ...]:
        """The folders of all adapters that the engine holds, each once: those of `adapters` and `lora_path`."""
        return tuple(dict.fromkeys([*self.adapters.values(), *([self.lora_path] if self.lora_path else [])]))
