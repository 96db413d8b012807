"""Which GPUs each vLLM engine of a graph gets, and which share of their memory: specs, models and a machine enter, a memory plan leaves.
Pure.

Two layouts are compared. Together: every engine on as many of the GPUs as can share its layers. Apart: the largest model on all GPUs but
those of the others, which get one each. The one in which more whole contexts fit is taken; apart where that makes no difference.
"""

import math
from collections.abc import Iterator, Mapping

from msgspec import structs

from pipeline.engines.adapters import AdapterCard
from pipeline.engines.memory import CONTEXT_BYTES, Need
from pipeline.engines.model_card import ModelCard
from pipeline.engines.placement.machines import with_gpus
from pipeline.engines.vllm.memory import DEFAULT_SHARE, FULL_SHARE, MemoryPlan, devices_of, memory_plan, need_of
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.system.machine import Gpu, Machine

Specs = Mapping[str, VllmSpec]
FEW_CONTEXTS = 8
"""With room for fewer whole contexts, iterations are made smaller, which leaves more of the memory to the cache."""
_SMALL_ITERATION = 2048
_MAX_GPUS = 16


def room(plan: MemoryPlan) -> float:
    """For how many chains there is room for whole contexts at every engine, or as many calls as an engine gets at once; 1 where that is
    not known."""
    return min(min(1.0 if row.sequences is None else row.sequences, plan.specs[row.role].max_in_flight) for row in plan.rows)


class Planner:
    """Places engines on the GPUs of a machine, which are all as its first one."""

    def __init__(self, machine: Machine, cards: Mapping[str, ModelCard], adapters: Mapping[str, AdapterCard]) -> None:
        """`cards` and `adapters`: what is known of the models and adapters that specs name, by these names."""
        self._machine, self._cards, self._adapters = machine, cards, adapters

    def best(self, specs: Specs) -> MemoryPlan | None:
        """The plan with the most room, whose specs say their GPUs and shares; None where no layout has room for one context of each role.

        What a spec says of its GPUs or its share is kept.
        """
        found = [*self._plans(specs)]
        if max(map(room, found), default=0.0) < FEW_CONTEXTS:
            tokens = {role: spec.max_num_batched_tokens or _SMALL_ITERATION for role, spec in specs.items()}
            found += self._plans({role: structs.replace(spec, max_num_batched_tokens=tokens[role]) for role, spec in specs.items()})
        return max(found, key=room, default=None)

    def enough_gpus(self, specs: Specs) -> int | None:
        """How many GPUs like those of the machine would do, as a power of two; None where no such number does."""
        counts = (count for count in (2, 4, 8, _MAX_GPUS) if count > len(self._machine.gpus))
        machines = {count: with_gpus(self._machine, count) for count in counts}
        return next((count for count, each in machines.items() if Planner(each, self._cards, self._adapters).best(specs)), None)

    def _need(self, spec: VllmSpec) -> Need:
        return need_of(spec, self._cards, self._adapters, self._machine.gpus[0])

    def _plans(self, specs: Specs) -> Iterator[MemoryPlan]:
        for layout in self._layouts(specs):
            placed = {role: _on(specs[role], gpus) for role, gpus in layout.items()}
            if (shared := self._with_shares(placed)) is not None:
                yield memory_plan(shared, self._machine, self._cards, self._adapters)

    def _layouts(self, specs: Specs) -> Iterator[dict[str, tuple[int, ...]]]:
        """The GPUs of each role, apart and then together; the largest model first."""
        sizes = {role: self._need(structs.replace(spec, tensor_parallel_size=1, devices=())).fixed_bytes for role, spec in specs.items()}
        largest, *others = sorted(specs, key=lambda role: -sizes[role])
        count = len(self._machine.gpus)
        if others and count > len(others):
            own = {role: (count - 1 - place,) for place, role in enumerate(others)}
            yield {largest: self._first(specs[largest], count - len(others))} | own
        yield {role: self._first(specs[role], count) for role in (largest, *others)}

    def _first(self, spec: VllmSpec, most: int) -> tuple[int, ...]:
        """The first GPUs, at most as many as can share a layer of the model: they divide its heads, or several have one."""
        shape = self._cards[spec.model].shape
        if shape is None:
            return tuple(range(1 << (most.bit_length() - 1)))
        divisible = (ranks for ranks in range(most, 0, -1) if shape.intermediate_size % ranks == 0 and shape.heads % ranks == 0)
        return tuple(range(next(n for n in divisible if shape.kv_heads % n == 0 or n % shape.kv_heads == 0)))

    def _with_shares(self, specs: Specs) -> dict[str, VllmSpec] | None:
        """`specs` with a share of their GPUs each; None where one context of each does not fit, or a GPU is not there.

        On each GPU the engines get room for equally many contexts, no more than they have calls; what is left is the largest one's.
        """
        gpus = {gpu.index: gpu for gpu in self._machine.gpus}
        if any(index not in gpus for spec in specs.values() for index in devices_of(spec)):
            return None
        needs = {role: self._need(spec) for role, spec in specs.items()}
        here = {index: [role for role, spec in specs.items() if index in devices_of(spec)] for index in gpus}
        limits = {index: _limit(gpu, len(here[index])) for index, gpu in gpus.items()}
        contexts = {
            index: _contexts(limits[index] * (gpus[index].memory_bytes or 0), [(specs[role], needs[role]) for role in roles])
            for index, roles in here.items()
            if roles
        }
        if any(count < 1 for count in contexts.values()):
            return None
        shares = {role: spec.gpu_memory_utilization for role, spec in specs.items()}
        for role in sorted(specs, key=lambda role: needs[role].weights_bytes or 0):
            if shares[role] is not None:
                continue
            devices = devices_of(specs[role])
            if between := [index for index in devices if any(shares[other] is None for other in here[index] if other != role)]:
                shares[role] = max(_least(gpus[index], specs[role], needs[role], contexts[index]) for index in between)
            else:
                left = (limits[index] - sum(shares[other] or 0 for other in here[index] if other != role) for index in devices)
                shares[role] = math.floor(100 * min(left) + 1e-9) / 100
        if any(share is None or not 0 < share <= 1 for share in shares.values()):
            return None
        return {role: structs.replace(spec, gpu_memory_utilization=shares[role]) for role, spec in specs.items()}


def _on(spec: VllmSpec, gpus: tuple[int, ...]) -> VllmSpec:
    """`spec` on these GPUs, unless it names its own."""
    if spec.devices or spec.tensor_parallel_size > 1:
        return spec
    first = gpus == tuple(range(len(gpus)))
    return structs.replace(spec, tensor_parallel_size=len(gpus), devices=() if first else gpus)


def _limit(gpu: Gpu, engines: int) -> float:
    """The part of a GPU that its engines may have together: what is free of it now, less CUDA's own needs."""
    most = FULL_SHARE if engines > 1 else DEFAULT_SHARE
    if gpu.memory_bytes is None or gpu.free_bytes is None:
        return most
    return min(most, (gpu.free_bytes - engines * CONTEXT_BYTES) / gpu.memory_bytes)


def _contexts(total_bytes: float, engines: list[tuple[VllmSpec, Need]]) -> float:
    """For how many whole contexts of each engine there is room, at most as many as there are calls; 1 where contexts are of no known
    size and the weights fit."""
    sizes = [need.context_bytes for _, need in engines]
    known = [size for size in sizes if size is not None]
    left = total_bytes - sum(need.fixed_bytes for _, need in engines)
    if len(known) < len(sizes):
        return 1.0 if left > sum(known) else 0.0
    return min(left / sum(known), max(spec.max_in_flight for spec, _ in engines))


def _least(gpu: Gpu, spec: VllmSpec, need: Need, contexts: float) -> float:
    """The share of a GPU that an engine needs for this many contexts; if their size is unknown, for half of its weights."""
    size = need.context_bytes
    cache = (need.weights_bytes or 0) / 2 if size is None else size * min(contexts, spec.max_in_flight)
    return math.ceil(100 * (need.fixed_bytes + cache) / (gpu.memory_bytes or 1) - 1e-9) / 100
