"""Does everything fit? Findings about the memory of a plan: shares of a GPU, weights and one sequence in each share, main
memory where there is no GPU. Pure.
"""

import math
from collections.abc import Iterator

from pipeline.engine import Finding, MemoryRow
from pipeline.engines.vllm.plan import (
    CONTEXT_BYTES,
    DEFAULT_CPU_CACHE_GIB,
    MemoryPlan,
    context_of,
    devices_of,
    divides,
    gpu_roles,
    share_of,
    token_bytes,
)
from pipeline.machine import GIB, gib

_FULL = 0.95
"""Beyond this share of a GPU, little is left for contexts and fragments: out of memory later."""
_LEAST_SHARE = 0.1


def shares(plan: MemoryPlan, gpu: int) -> Iterator[Finding]:
    """Do the roles on one GPU leave each other room, and does what else runs there leave them room?"""
    roles = gpu_roles(plan, gpu)
    silent = [role for role in roles if plan.specs[role].gpu_memory_utilization is None]
    total = sum(share_of(plan.specs[role]) for role in roles)
    if len(roles) > 1 and silent:
        what = f"it shares GPU {gpu} with {_others(roles, silent[0])} and does not say gpu_memory_utilization"
        yield Finding(role=silent[0], what=what, remedy=_suggestion(plan, gpu), fatal=True)
    elif total > 1:
        what = f"it shares GPU {gpu} with {_others(roles, roles[-1])}, and their gpu_memory_utilization adds up to {total:.2f}"
        yield Finding(role=roles[-1], what=what, remedy=_suggestion(plan, gpu), fatal=True)
    else:
        if total > _FULL and roles:
            what = f"the engines on GPU {gpu} may use {total:.2f} of it, which leaves little for CUDA's own needs"
            yield Finding(role=roles[-1], what=what, remedy=f"keep the sum of gpu_memory_utilization at {_FULL} or less", fatal=False)
        yield from _free(plan, gpu, roles)


def _others(roles: list[str], role: str) -> str:
    return " and ".join(other for other in roles if other != role)


def _suggestion(plan: MemoryPlan, gpu: int) -> str:
    """Shares for the roles of a GPU: the smaller ones get what they need and half their weights for the cache, the largest the rest."""
    rows = sorted((row for row in plan.rows if row.device == f"GPU {gpu}"), key=lambda row: row.weights_bytes or 0)
    shares = {row.role: max(_LEAST_SHARE, _up(_need(row) / row.total_bytes)) if row.total_bytes else _LEAST_SHARE for row in rows[:-1]}
    shares |= {row.role: math.floor(100 * (_FULL - sum(shares.values())) + 1e-9) / 100 for row in rows[-1:]}
    return "set it to " + " and ".join(f"{share:.2f} for {role}" for role, share in shares.items())


def _need(row: MemoryRow) -> float:
    return (row.weights_bytes or 0) * 1.5 + row.overhead_bytes


def _up(share: float) -> float:
    return math.ceil(100 * share - 1e-9) / 100


def _free(plan: MemoryPlan, gpu: int, roles: list[str]) -> Iterator[Finding]:
    """vLLM refuses when its share is not free at that moment: engines of this run that start earlier count as well."""
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
            remedy = f"at most {fits:.2f} fits" if fits > 0 else "end what else runs there, or name another GPU in devices"
            yield Finding(role=role, what=what, remedy=remedy, fatal=True)
            return
        taken += row.share_bytes + CONTEXT_BYTES


def rooms(plan: MemoryPlan) -> Iterator[Finding]:
    """Weights, and then one whole sequence, must fit into every share."""
    for role, spec in plan.specs.items():
        row = min(plan.rows_of(role), key=lambda row: row.cache_bytes or 0, default=None)
        if row is None or row.cache_bytes is None or _is_undecided(plan, role):
            continue
        fatal = not plan.cards[spec.model].rough
        if row.share_bytes is not None and spec.kv_cache_gib is None and row.cache_bytes <= 0:
            yield Finding(role=role, what=_too_heavy(row), remedy=_lighter(plan, role, row), fatal=fatal)
        elif row.share_bytes is not None and _used(row) > row.share_bytes:
            what = f"with kv_cache_gib it needs {gib(_used(row))}, more than its share of {gib(row.share_bytes)}"
            yield Finding(role=role, what=what, remedy="vLLM takes it nevertheless: leave that much room on the GPU", fatal=False)
        elif row.sequences is not None and row.sequences < 1:
            yield _too_short(plan, role, row, fatal)


def _is_undecided(plan: MemoryPlan, role: str) -> bool:
    """Its share is still to be said."""
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
    """What would make the weights of a role fit, with room for one sequence: a larger share, more GPUs, fewer bits."""
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
    """The largest share that a role could have beside the others on its GPUs."""
    others = (sum(share_of(plan.specs[other]) for other in gpu_roles(plan, gpu) if other != role) for gpu in devices_of(plan.specs[role]))
    return _FULL - max(others)


def _fits_on(plan: MemoryPlan, role: str, need: float, ranks: int) -> bool:
    shape, row = plan.cards[plan.specs[role].model].shape, plan.rows_of(role)[0]
    possible = shape is None or divides(shape.heads, shape.kv_heads, ranks)
    return possible and ranks <= len(plan.machine.gpus) and need <= (row.share_bytes or 0)


def _too_short(plan: MemoryPlan, role: str, row: MemoryRow, fatal: bool) -> Finding:
    """A cache without room for one sequence of `max_model_len`."""
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


def main_memory(plan: MemoryPlan) -> Iterator[Finding]:
    """Without a GPU all roles live in main memory together."""
    free, used = plan.machine.free_memory_bytes, 0
    for row in plan.rows:
        if used + _used(row) > free:
            spec, rest = plan.specs[row.role], free - used - _used(row) + (row.cache_bytes or 0)
            weights, cache = gib(row.weights_bytes or 0), gib(row.cache_bytes or 0)
            parts = f"{weights} weights, {gib(row.overhead_bytes)} activations and processes, {cache} cache"
            what = f"it needs {gib(_used(row))} of main memory ({parts}), but {gib(max(0, free - used))} are free"
            what += " beside the other engines" if used else ""
            smaller, now = math.floor(rest / GIB / spec.tensor_parallel_size * 4) / 4, spec.kv_cache_gib or DEFAULT_CPU_CACHE_GIB
            remedy = f"set kv_cache_gib to {smaller:g} instead of {now:g}" if smaller > 0 else "use a smaller model or more memory"
            yield Finding(role=row.role, what=what, remedy=remedy, fatal=not plan.cards[spec.model].rough)
        used += _used(row)
