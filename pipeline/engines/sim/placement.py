"""Which simulated engines are on a device, what they take of its memory, and what some have without the others. Pure; sizes are bytes."""

from collections.abc import Collection, Mapping

from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec
from pipeline.errors import GraphError


def devices_of(specs: Mapping[str, SimSpec]) -> dict[str, SimDeviceSpec]:
    """The devices that `specs` name, by name; raises `GraphError` where engines do not agree about one, or an engine cannot work at all."""
    devices: dict[str, SimDeviceSpec] = {}
    for role, spec in specs.items():
        if devices.setdefault(spec.device.name, spec.device) != spec.device:
            raise GraphError(f"$.{role}.device", f"device `{spec.device.name}` is described in two ways; engines that share it must agree")
        if spec.max_num_batched_tokens < spec.max_num_seqs:
            what = f"{spec.max_num_batched_tokens} is less than max_num_seqs, {spec.max_num_seqs}; each sequence needs a token"
            raise GraphError(f"$.{role}.max_num_batched_tokens", what)
    return devices


def widened(specs: Mapping[str, SimSpec], opened: Collection[str]) -> dict[str, dict[str, int]]:
    """See `Backend.widened`: weights and caches of the engines that are not opened make the caches of the opened ones larger, each in
    proportion to its size. Raises `GraphError` as `devices_of` does."""
    devices_of(specs)
    found: dict[str, dict[str, int]] = {}
    for role in opened:
        spec = specs[role]
        here = {other: each for other, each in specs.items() if each.device.name == spec.device.name}
        freed = sum(_weights(each) + _cache(each) for other, each in here.items() if other not in opened)
        caches = sum(_cache(each) for other, each in here.items() if other in opened)
        if freed and _cache(spec):
            found[role] = {"kv_cache_tokens": int(spec.kv_cache_tokens * (1 + freed / caches))}
    return found


def _weights(spec: SimSpec) -> float:
    return spec.parameters * spec.bytes_per_parameter


def _cache(spec: SimSpec) -> float:
    return spec.kv_cache_tokens * spec.kv_bytes_per_token
