"""Simulated engines for a machine that nobody has measured: planned vLLM engines and their memory enter, engines with the rates of data
sheets leave."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.engine import MemoryRow
from pipeline.engines.model_card import DTYPE_BYTES
from pipeline.engines.models import resolve
from pipeline.engines.placement.choices import card_of
from pipeline.errors import UsageError
from pipeline.system.machine import Machine

RATES: Mapping[str, tuple[float, float]] = {
    "A10-24GB": (125e12, 600e9),
    "A40-48GB": (149.7e12, 696e9),
    "A100-40GB": (312e12, 1555e9),
    "A100-80GB": (312e12, 2039e9),
    "A6000-48GB": (154.8e12, 768e9),
    "H100-80GB": (989e12, 3350e9),
    "H200-141GB": (989e12, 4800e9),
    "L4-24GB": (121e12, 300e9),
    "L40S-48GB": (362e12, 864e9),
}
"""Dense bf16 FLOP/s and bytes/s by NVIDIA's data sheets; of A100, H100 and H200 the SXM form."""
COMPUTE, BANDWIDTH, OVERHEAD_S = 0.6, 0.72, 0.0032
"""Shares of these that are reached, and what an iteration takes beside: as in the bundled `sim-2xh100` (bench/calibration.md)."""


def simulated(engines: Mapping[str, Mapping[str, Any]], memory: Sequence[MemoryRow], machine: Machine) -> dict[str, dict[str, Any]]:
    """The engines as an engines file would simulate them.

    Raises `UsageError` for a GPU without known rates, and a model of unknown size.
    """
    name = machine.gpus[0].name
    if name not in RATES:
        raise UsageError(f"--as {name}: no rates of this GPU are known here; {', '.join(RATES)} are, or give simulated --engines")
    groups = _groups({role: [row.device for row in memory if row.role == role] for role in engines})
    return {
        role: _fields(role, fields, [row for row in memory if row.role == role], groups[role], name) for role, fields in engines.items()
    }


def resplit(
    engines: Mapping[str, Mapping[str, Any]], as_simulated: Mapping[str, Mapping[str, Any]], caches: Mapping[str, int], machine: Machine
) -> dict[str, dict[str, Any]]:
    """Planned vLLM engines whose `gpu_memory_utilization` gives their caches these tokens instead of those of `as_simulated`."""
    found = {role: dict(fields) for role, fields in engines.items()}
    gpu_bytes = machine.gpus[0].memory_bytes or math.inf
    for role, size in caches.items():
        fields = as_simulated[role]
        gpus = len(str(fields["device"]["name"]).split("+"))
        more = (size - fields["kv_cache_tokens"]) * fields["kv_bytes_per_token"] / (gpus * gpu_bytes)
        found[role]["gpu_memory_utilization"] = math.floor(1000 * (found[role]["gpu_memory_utilization"] + more)) / 1000
    return found


def _groups(devices: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """The GPUs that each role is taken to compute on: roles that share some share all that any of them has."""
    found: dict[str, tuple[str, ...]] = {}
    for role, own in devices.items():
        joined, before = set(own), 0
        while len(joined) > before:
            before = len(joined)
            joined |= {gpu for other in devices.values() if joined & set(other) for gpu in other}
        found[role] = tuple(sorted(joined))
    return found


def _fields(role: str, given: Mapping[str, Any], rows: Sequence[MemoryRow], gpus: Sequence[str], name: str) -> dict[str, Any]:
    model = str(given["model"])
    card = card_of(role, resolve(role, model))
    dtype = str(given.get("dtype") or card.dtype or "bfloat16")
    dtype = dtype if dtype in DTYPE_BYTES else "bfloat16"
    weights, kv = card.weights_bytes(dtype, given.get("quantization")), card.kv_bytes_per_token(DTYPE_BYTES[dtype])
    if card.parameters is None or weights is None or kv is None or card.shape is None or not rows:
        raise UsageError(f"--model {role}={model}: its config.json, which says how large its contexts are, is not known here; download it")
    flops, rate = RATES[name]
    cache = min((row.cache_tokens for row in rows if row.cache_tokens is not None), default=None)
    fields = {"max_model_len": given.get("max_model_len"), "max_num_seqs": given.get("max_num_seqs"), "kv_cache_tokens": cache}
    return {
        "backend": "sim",
        "model": model,
        "max_in_flight": given.get("max_in_flight", 64),
        "device": {
            "name": "+".join(gpus),
            "flops_per_s": len(gpus) * flops * COMPUTE,
            "bytes_per_s": len(gpus) * rate * BANDWIDTH,
            "overhead_s": OVERHEAD_S,
        },
        "parameters": float(card.parameters),
        "bytes_per_parameter": weights / card.parameters,
        "layers": card.shape.layers,
        "kv_bytes_per_token": float(kv),
        **{key: value for key, value in fields.items() if value},
    }
