"""The keys that an engines file may hold for an engine `torch`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from pipeline.graph.json_keys import check_template_arguments
from pipeline.graph.spec import AdapterName, RestartableSpec

SMALL_PARAMETERS = 20_000_000
"""Below this number of parameters a CPU has the weights in its caches, and float32 is faster there and rounds less."""


class TorchSpec(RestartableSpec, frozen=True, kw_only=True, tag="torch"):
    """A transformers model under this package's continuous-batching loop, in a worker process of its own."""

    model: str
    """A folder, a hub name, or `bundled:NAME` for a model that comes with the package."""
    device: Literal["auto", "cpu", "cuda", "cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7"] = "auto"
    """`auto`: the first CUDA device if there is one, else the CPU."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """`auto`: what the model was saved in; below 20M parameters on a CPU float32, which is faster there and rounds less."""
    max_num_seqs: Annotated[int, Meta(ge=1, le=4096)] = 64
    """Sequences computed together; a request of n candidates takes n."""
    max_model_len: Annotated[int, Meta(ge=16, le=1_000_000_000)] | None = None
    """Context length in tokens; by default the model's own."""
    max_num_batched_tokens: Annotated[int, Meta(ge=16, le=1_000_000_000)] = 2048
    """Most prompt tokens computed in one iteration; longer prompts are prefilled in chunks."""
    kv_cache_slots: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    """Sequences whose keys and values are kept, running or cached; by default twice `max_num_seqs`."""
    core: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """CPU core the worker is pinned to."""
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    """CPU threads of one operation."""
    adapters: Mapping[AdapterName, str] = {}
    """What a stage may name under `adapter`, and the folder of that LoRA adapter, as PEFT saves it, or `bundled:NAME`."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy`: random weights of the model's shape, for throughput work without a download."""
    chat_template_kwargs: Mapping[str, Any] = {}
    """What the model's chat template is told beside the messages, such as `enable_thinking: false` for Qwen3."""
    trust_remote_code: bool = False
    """Let code run that comes with the model."""

    def __post_init__(self) -> None:
        """Refuse what cannot be told to a chat template."""
        check_template_arguments(self.chat_template_kwargs)
