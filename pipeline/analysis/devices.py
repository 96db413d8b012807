"""Which devices an engine of a run computes on, by name, as far as its `run.json` tells. Pure."""

from pipeline.analysis.card import RunCard


def devices_of(role: str, card: RunCard) -> list[str]:
    """`GPU 0`, the name of a simulated device, the cores of an engine on the CPU; else the engine is a device of its own."""
    spec, facts = card.engines.get(role, {}), card.facts.get(role, {})
    backend, found = spec.get("backend"), str(facts.get("device", spec.get("device")))
    if backend == "sim":
        return [str(spec["device"]["name"])]
    if backend in ("torch", "vllm") and found.lower() == "cpu":
        return [_cores(role, spec.get("core"), int(spec.get("threads", 1)))]
    if backend == "torch":
        return [f"GPU {found.rpartition(':')[2] if ':' in found else 0}"]
    if backend == "vllm":
        return [f"GPU {number}" for number in spec["devices"] or range(spec["tensor_parallel_size"])]
    return [role]


def _cores(role: str, first: int | None, threads: int) -> str:
    """Where no core is named, engines get cores of their own as far as there are enough."""
    if first is None:
        return f"CPU cores of {role}"
    return f"CPU core {first}" if threads == 1 else f"CPU cores {first}-{first + threads - 1}"
