"""Which GPUs each vLLM engine of a graph gets, and which share of their memory: specs, models and a machine enter, a memory plan leaves.
Pure.

Two layouts are compared. Together: every engine on as many of the GPUs as can share its layers. Apart: the largest model on all GPUs but
those of the others, which get one each. The one in which more whole contexts fit is taken; apart where that makes no difference.
"""

import math
from collections.abc import Iterator, Mapping

from msgspec import Struct, structs

from pipeline.engines.adapters import AdapterCard
from pipeline.engines.model_card import ModelCard
from pipeline.engines.placement.machines import with_gpus
from pipeline.engines.vllm.memory_plan import (
    CONTEXT_BYTES,
    DEFAULT_SHARE,
    FULL_SHARE,
    MemoryPlan,
    context_of,
    devices_of,
    divides,
    memory_plan,
    overhead_bytes,
    token_bytes,
    weights_bytes,
)
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.machine import Gpu, Machine

Specs = Mapping[str, VllmSpec]
FEW_CONTEXTS = 8
"""With room for fewer whole contexts, iterations are made smaller, which leaves more of the memory to the cache."""
_SMALL_ITERATION = 2048
_MOST_GPUS = 16


class Models(Struct, frozen=True):
    """What is known of the models and adapters that specs name, by these names."""

    cards: Mapping[str, ModelCard]
    adapters: Mapping[str, AdapterCard] = {}


def best_plan(specs: Specs, machine: Machine, models: Models) -> MemoryPlan | None:
    """The plan with the most room, whose specs say their GPUs and shares; None where no layout has room for one context of each role.

    What a spec says of its GPUs or its share is kept.
    """
    best = max(_plans(specs, machine, models), key=room, default=None)
    if best is None or room(best) < FEW_CONTEXTS:
        less = {
            role: spec if spec.max_num_batched_tokens else structs.replace(spec, max_num_batched_tokens=_SMALL_ITERATION)
            for role, spec in specs.items()
        }
        found = [*([] if best is None else [best]), *_plans(less, machine, models)]
        best = max(found, key=room, default=None)
    return best


def room(plan: MemoryPlan) -> float:
    """For how many chains there is room for whole contexts at every engine, or as many calls as an engine gets at once; 1 where that is
    not known."""
    return min(min(1.0 if row.sequences is None else row.sequences, plan.specs[row.role].max_in_flight) for row in plan.rows)


def enough_gpus(specs: Specs, machine: Machine, models: Models) -> int | None:
    """How many GPUs like those of `machine` would do, as a power of two; None where no such number does."""
    counts = (count for count in (2, 4, 8, _MOST_GPUS) if count > len(machine.gpus))
    return next((count for count in counts if best_plan(specs, with_gpus(machine, count), models) is not None), None)


def _plans(specs: Specs, machine: Machine, models: Models) -> Iterator[MemoryPlan]:
    for layout in _layouts(specs, machine, models):
        placed = {role: _on(specs[role], gpus) for role, gpus in layout.items()}
        if (shared := _with_shares(placed, machine, models)) is not None:
            yield memory_plan(shared, machine, models.cards, models.adapters)


def _layouts(specs: Specs, machine: Machine, models: Models) -> Iterator[dict[str, tuple[int, ...]]]:
    """The GPUs of each role, apart and then together; the largest model first."""
    sizes = {role: (_weights(structs.replace(spec, tensor_parallel_size=1), models) or 0) for role, spec in specs.items()}
    largest, *others = sorted(specs, key=lambda role: -sizes[role])
    count = len(machine.gpus)
    if others and count > len(others):
        own = {role: (count - 1 - place,) for place, role in enumerate(others)}
        yield {largest: _first(specs[largest], count - len(others), models)} | own
    yield {role: _first(specs[role], count, models) for role in (largest, *others)}


def _first(spec: VllmSpec, most: int, models: Models) -> tuple[int, ...]:
    """The first GPUs, at most as many as can share a layer of the model."""
    shape = models.cards[spec.model].shape
    if shape is None:
        return tuple(range(1 << (most.bit_length() - 1)))
    possible = (ranks for ranks in range(most, 0, -1) if shape.intermediate_size % ranks == 0)
    return tuple(range(next(ranks for ranks in possible if divides(shape.heads, shape.kv_heads, ranks))))


def _on(spec: VllmSpec, gpus: tuple[int, ...]) -> VllmSpec:
    """`spec` on these GPUs, unless it names its own."""
    if spec.devices or spec.tensor_parallel_size > 1:
        return spec
    first = gpus == tuple(range(len(gpus)))
    return structs.replace(spec, tensor_parallel_size=len(gpus), devices=() if first else gpus)


def _with_shares(specs: Specs, machine: Machine, models: Models) -> dict[str, VllmSpec] | None:
    """`specs` with a share of their GPUs each; None where one context of each does not fit, or a GPU is not there.

    On each GPU the engines get room for equally many contexts, no more than they have calls; what is left is the largest one's.
    """
    gpus = {gpu.index: gpu for gpu in machine.gpus}
    here = {index: [role for role, spec in specs.items() if index in devices_of(spec)] for index in gpus}
    if any(index not in gpus for spec in specs.values() for index in devices_of(spec)):
        return None
    contexts = {index: _contexts(gpus[index], {role: specs[role] for role in roles}, models) for index, roles in here.items() if roles}
    if any(count < 1 for count in contexts.values()):
        return None
    shares = {role: spec.gpu_memory_utilization for role, spec in specs.items()}
    smallest_first = sorted(specs, key=lambda role: _weights(specs[role], models) or 0)
    for role in smallest_first:
        if shares[role] is not None:
            continue
        own = [index for index in devices_of(specs[role]) if any(shares[other] is None for other in here[index] if other != role)]
        if own:
            shares[role] = max(_least(gpus[index], specs[role], models, contexts[index]) for index in own)
        else:
            left = (_limit(gpus[i], len(here[i])) - sum(shares[o] or 0 for o in here[i] if o != role) for i in devices_of(specs[role]))
            shares[role] = math.floor(100 * min(left) + 1e-9) / 100
    if any(share is None or not 0 < share <= 1 for share in shares.values()):
        return None
    return {role: structs.replace(spec, gpu_memory_utilization=shares[role]) for role, spec in specs.items()}


def _limit(gpu: Gpu, engines: int) -> float:
    """The part of a GPU that its engines may have together: what is free of it now, less CUDA's own needs."""
    most = FULL_SHARE if engines > 1 else DEFAULT_SHARE
    if gpu.memory_bytes is None or gpu.free_bytes is None:
        return most
    return min(most, (gpu.free_bytes - engines * CONTEXT_BYTES) / gpu.memory_bytes)


def _contexts(gpu: Gpu, specs: Specs, models: Models) -> float:
    """For how many whole contexts of each engine a GPU has room, at most as many as there are calls; 1 where contexts are of no known
    size and the weights fit."""
    total = gpu.memory_bytes or 0
    fixed = sum(_fixed(gpu, spec, models) for spec in specs.values())
    sizes = [_context_bytes(spec, models) for spec in specs.values()]
    known = [size for size in sizes if size is not None]
    left = _limit(gpu, len(specs)) * total - fixed
    if len(known) < len(sizes):
        return 1.0 if left > sum(known) else 0.0
    return min(left / sum(known), max(spec.max_in_flight for spec in specs.values()))


def _least(gpu: Gpu, spec: VllmSpec, models: Models, contexts: float) -> float:
    """The share of a GPU that an engine needs for this many contexts; if their size is unknown, for half of its weights."""
    size = _context_bytes(spec, models)
    cache = (_weights(spec, models) or 0) / 2 if size is None else size * min(contexts, spec.max_in_flight)
    return math.ceil(100 * (_fixed(gpu, spec, models) + cache) / (gpu.memory_bytes or 1) - 1e-9) / 100


def _fixed(gpu: Gpu, spec: VllmSpec, models: Models) -> int:
    return (_weights(spec, models) or 0) + overhead_bytes(spec, models.cards[spec.model].shape, gpu)


def _weights(spec: VllmSpec, models: Models) -> int | None:
    return weights_bytes(spec, models.cards, models.adapters, cpu=False)


def _context_bytes(spec: VllmSpec, models: Models) -> int | None:
    """Bytes of a whole context on each GPU of an engine; None where not known."""
    each, context = token_bytes(spec, models.cards), context_of(spec, models.cards[spec.model])
    return None if each is None or context is None else each * context
