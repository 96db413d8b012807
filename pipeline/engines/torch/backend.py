"""The main process's side of engine `torch`: this package's continuous batching, in one worker process for each model.

Engines are opened here, and checked before a worker starts: devices, limits, memory. Neither torch nor transformers is imported:
the main process shares the machine's cores with the engines. `pipeline.engines.torch.model` is the other side.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from pipeline.engine import Availability, Backend, Examination, Finding
from pipeline.engines.adapters import VARIANTS, AdapterCard, adapter_findings, read_adapter
from pipeline.engines.cores import CoreRequest, core_findings, share_cores
from pipeline.engines.held import check_held
from pipeline.engines.hub import check_model
from pipeline.engines.memory import Need, shortages
from pipeline.engines.model_card import DTYPE_BYTES, ModelCard, Part, missing, read_card, refuse, too_long
from pipeline.engines.models import load_tokenizer, resolve, tokenizer_of
from pipeline.engines.process.engine import WorkerEngine, open_workers
from pipeline.engines.process.wire import Setup
from pipeline.engines.torch.spec import TorchSpec, float32_on_cpu
from pipeline.system.machine import Gpu, Machine, cores, gib
from pipeline.system.worker_process import Program

_PROCESS_BYTES = 3 << 28
"""Memory of a worker that has imported torch and transformers: 0.75 GiB, assumed."""
_WITHOUT_GPU = "use a smaller model, or plan for a machine with GPUs: pipeline doctor --as 2xH100-80GB"


@asynccontextmanager
async def open_torch(specs: Mapping[str, TorchSpec]) -> AsyncIterator[Mapping[str, WorkerEngine]]:
    """Open an engine for each role, all at once.

    Raises `GraphError` when a model cannot be loaded here, `EngineDead` when a worker dies while loading.
    """
    cards, adapters = _known(specs)
    for role, spec in specs.items():
        card = cards[role]
        check_held(f"engine {role!r}", card.model)
        check_model(role, card.model)
        refuse([*missing(role, card, _needs(spec)), *adapter_findings(role, adapters[role], card, VARIANTS), *_slots(role, spec)])
    core_requests = {role: CoreRequest(spec.core, spec.threads, not spec.device.startswith("cuda")) for role, spec in specs.items()}
    shares = share_cores(core_requests, cores())
    async with open_workers([[_engine(role, spec, shares[role])] for role, spec in specs.items()]) as opened:
        yield opened


def _engine(role: str, spec: TorchSpec, cores: tuple[int, ...]) -> WorkerEngine:
    model = resolve(role, spec.model)
    return WorkerEngine(Setup.of(role, spec, model, cores), _program(spec), partial(load_tokenizer, model, spec))


def _program(spec: TorchSpec) -> Program:
    # Memory that one iteration frees is kept for the next, not given back to the system: some percent faster on a CPU.
    keep_memory = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 32), "MALLOC_TOP_PAD_": str(1 << 26)}
    return Program(
        module="pipeline.engines.process.worker",
        arguments=("pipeline.engines.torch.model:load_model",),
        environment={"OMP_NUM_THREADS": str(spec.threads)},
        defaults=keep_memory,
    )


def _needs(spec: TorchSpec) -> tuple[Part, ...]:
    """The parts of a model's folder that an engine reads."""
    return ("config", "tokenizer") if spec.load_format == "dummy" else ("config", "tokenizer", "weights")


def _known(specs: Mapping[str, TorchSpec]) -> tuple[dict[str, ModelCard], dict[str, dict[str, AdapterCard]]]:
    """What is known of each role's model, and of its adapters; raises `GraphError` for an unknown bundled model."""
    cards = {role: read_card(resolve(role, spec.model)) for role, spec in specs.items()}
    return cards, {role: {name: read_adapter(path) for name, path in spec.adapters.items()} for role, spec in specs.items()}


def _slots(role: str, spec: TorchSpec) -> Iterator[Finding]:
    """The flaw where there are too few slots."""
    if spec.kv_cache_slots is not None and spec.kv_cache_slots < spec.max_num_seqs:
        what = f"kv_cache_slots is {spec.kv_cache_slots}, but max_num_seqs = {spec.max_num_seqs} sequences need one each"
        yield Finding(role=role, what=what, remedy=f"set kv_cache_slots to {spec.max_num_seqs} or more", fatal=True)


def torch_available(machine: Machine) -> Availability:
    """The installed torch, and where it would compute."""
    version = machine.versions.get("torch")
    if version is None:
        return Availability(usable=False, what="torch is not installed", remedy="pip install torch")
    where = "on CUDA" if machine.gpus and cuda_build(machine) else "on the CPU"
    idle = machine.gpus and not cuda_build(machine)
    remedy = "it cannot use the GPU: pip install --force-reinstall torch" if idle else ""
    return Availability(usable=True, what=f"torch {version}, {where}", remedy=remedy)


async def examine_torch(specs: Mapping[str, TorchSpec], machine: Machine) -> Examination:
    """Check whether these roles would start on `machine`, and plan their memory; raises `GraphError` for an unknown bundled model."""
    return torch_examination(specs, machine, *_known(specs))


def torch_examination(
    specs: Mapping[str, TorchSpec],
    machine: Machine,
    cards: Mapping[str, ModelCard],
    adapters: Mapping[str, Mapping[str, AdapterCard]] | None = None,
) -> Examination:
    """The result of `examine_torch`, where `cards` hold what is known of each role's model, and `adapters` of its adapters. Pure."""
    beside = adapters or {}
    found = [finding for role, spec in specs.items() for finding in _spec(role, spec, machine, cards[role])]
    found += [finding for role, known in beside.items() for finding in adapter_findings(role, known, cards[role], VARIANTS)]
    gpus = {gpu.index: gpu for gpu in machine.gpus}
    rows, starts = [], []
    for role, spec in specs.items():
        index = gpu_of(spec, machine)
        if index is None or index in gpus:
            gpu = None if index is None else gpus[index]
            need, slots = need_of(spec, cards[role], beside.get(role, {}), gpu), spec.kv_cache_slots or 2 * spec.max_num_seqs
            cache = None if need.context_bytes is None else slots * need.context_bytes
            rows.append(need.row(role, gpu or machine, cache_bytes=cache))
            starts.append((rows[-1], need.fixed_bytes))
    core_requests = {role: CoreRequest(spec.core, spec.threads, True) for role, spec in specs.items() if gpu_of(spec, machine) is None}
    found += core_findings(core_requests, machine.cores)
    found += shortages(starts, _WITHOUT_GPU if not machine.gpus else "use a smaller model, another device, or backend vllm")
    for row in rows:
        left = None if row.free_bytes is None else row.free_bytes - sum(taken for each, taken in starts if each.device == row.device)
        if left is not None and 0 <= left < (row.cache_bytes or 0):
            what = f"its cache may grow to {gib(row.cache_bytes or 0)}, but the weights leave {gib(left)} of {row.device}"
            remedy = "lower max_num_seqs, kv_cache_slots or max_model_len"
            found.append(Finding(role=row.role, what=what, remedy=remedy, fatal=False))
    return Examination(findings=tuple(found), memory=tuple(rows))


def need_of(spec: TorchSpec, card: ModelCard, adapters: Mapping[str, AdapterCard], gpu: Gpu | None) -> Need:
    """The memory that an engine takes on `gpu`, or (None) on the CPU; its cache grows to a whole context for each of its slots."""
    dtype: str = spec.dtype
    if dtype == "auto":
        dtype = "float32" if gpu is None and float32_on_cpu(card.parameters) else card.dtype or "bfloat16"
    weights, value = card.weights_bytes(dtype), DTYPE_BYTES[dtype]
    return Need(
        weights_bytes=None if weights is None else weights + sum(each.parameters for each in adapters.values()) * value,
        weights_source=card.source,
        overhead_bytes=_PROCESS_BYTES,
        token_bytes=card.kv_bytes_per_token(value),
        context=spec.max_model_len or card.max_model_len,
    )


def gpu_of(spec: TorchSpec, machine: Machine) -> int | None:
    """The index of the GPU that the model is computed on; None for the CPU."""
    if spec.device == "auto":
        return 0 if machine.gpus and cuda_build(machine) else None
    return None if spec.device == "cpu" else int(spec.device.partition(":")[2] or 0)


def cuda_build(machine: Machine) -> bool:
    """True if the installed torch is one for CUDA, by its version."""
    return "torch" in machine.versions and not machine.versions["torch"].endswith("+cpu")


def _spec(role: str, spec: TorchSpec, machine: Machine, card: ModelCard) -> Iterator[Finding]:
    yield from () if machine.assumed else missing(role, card, _needs(spec))
    if machine.gpus and not cuda_build(machine):
        what = f"torch {machine.versions.get('torch', '')} cannot use the {machine.gpus[0].name}"
        yield Finding(
            role=role,
            what=what,
            remedy="install torch's CUDA build: pip install --force-reinstall torch",
            fatal=spec.device.startswith("cuda"),
        )
    elif (index := gpu_of(spec, machine)) is not None and index >= len(machine.gpus):
        here = f"has {len(machine.gpus)} GPUs" if machine.gpus else "shows no GPU"
        yield Finding(role=role, what=f"device is {spec.device}, but this machine {here}", remedy="set device to auto or cpu", fatal=True)
    yield from _slots(role, spec)
    yield from too_long(role, spec.max_model_len, card)


def gpus(specs: Mapping[str, TorchSpec]) -> int:
    return max((int(spec.device.partition(":")[2] or 0) + 1 for spec in specs.values() if spec.device != "cpu"), default=0)


def devices(specs: Mapping[str, TorchSpec], machine: Machine) -> dict[str, tuple[int, ...]]:
    found = {role: gpu_of(spec, machine) for role, spec in specs.items()}
    return {role: () if gpu is None or not cuda_build(machine) else (gpu,) for role, gpu in found.items()}


BACKEND = Backend(
    spec=TorchSpec, open=open_torch, available=torch_available, examine=examine_torch, tokenizer=tokenizer_of, gpus=gpus, devices=devices
)
