"""The keys that an engines file may hold for an engine `torch`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta

from pipeline.graph.spec import AdapterName, RestartableSpec


class TorchSpec(RestartableSpec, frozen=True, kw_only=True, tag="torch"):
    """A transformers model with this package's continuous batching, in a worker process."""

    model: str
    """A folder, a hub name, or `bundled:NAME` for a model of this package."""
    device: Literal["auto", "cpu", "cuda", "cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:4", "cuda:5", "cuda:6", "cuda:7"] = "auto"
    """`auto`: the first CUDA device, or the CPU if there is none."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Number type of the weights; `auto`: that of the checkpoint, but on a CPU float32 below 20 million parameters, or where it has no
    instructions for bfloat16, as it is faster there."""
    max_num_seqs: Annotated[int, Meta(ge=1, le=4096)] = 64
    """Maximum number of sequences computed together; a request for n candidates counts as n. Keys and values are kept of twice as many."""
    max_model_len: Annotated[int, Meta(ge=16, le=1_000_000_000)] | None = None
    """Context length in tokens; null: the model's own."""
    max_num_batched_tokens: Annotated[int, Meta(ge=16, le=1_000_000_000)] = 2048
    """Maximum number of prompt tokens computed in one iteration; longer prompts are prefilled in chunks."""
    core: Annotated[int, Meta(ge=0, le=65535)] | None = None
    """The first of the `threads` CPU cores that the worker is pinned to, counted from 0 among those of this process; null: separate cores
    if there are enough."""
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Number of CPU threads."""
    adapters: Mapping[AdapterName, str] = {}
    """LoRA adapters by the names that stages use under `adapter`: folders as PEFT saves them, or `bundled:NAME`."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy`: random weights of the model's shape, for throughput experiments without a download."""
    chat_template_kwargs: Mapping[str, Any] = {}
    """Arguments of the chat template, such as `enable_thinking: false` for Qwen3."""
    trust_remote_code: bool = False
    """Run code that comes with the model."""

    @property
    def gpus(self) -> tuple[int, ...]:
        return () if self.device == "cpu" else (int(self.device.partition(":")[2] or 0),)
