"""What a run had to compute on: its engines' settings and what they found out about themselves enter, one `Resources` leaves. Pure."""

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Resources(Struct, frozen=True, order=True):
    """What all engines of a run had together; the order is from less to more."""

    gpus: int = 0
    """Distinct ones: engines that share a GPU share it here too."""
    servers: int = 0
    """Distinct addresses; what stands behind them is not known."""
    cores: int = 0
    """Of engines that compute on the CPU."""
    flops_per_s: float = 0.0
    """Of distinct simulated devices."""
    replays: int = 0
    """Distinct recorded runs that answered in place of engines."""
    names: tuple[str, ...] = ()
    """Models of the GPUs, as far as engines tell, and names of simulated devices."""

    @property
    def kind(self) -> tuple[bool, ...]:
        """Only resources of one kind are more or less than each other."""
        return tuple(amount > 0 for amount in (self.gpus, self.servers, self.cores, self.flops_per_s, self.replays))

    @property
    def label(self) -> str:
        """For people: `2 GPUs (NVIDIA H200)`."""
        amounts = [_count(self.gpus, "GPU"), _count(self.servers, "server"), _count(self.cores, "core"), _count(self.replays, "replay")]
        amounts += [f"{self.flops_per_s / 1e12:,.0f} TFLOP/s, simulated"] if self.flops_per_s else []
        named = f" ({', '.join(self.names)})" if self.names else ""
        return " + ".join(filter(None, amounts)) + named or "unknown"


def resources(engines: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Mapping[str, Any]]) -> Resources:
    """The resources of the `engines` and `engine_facts` of a `run.json`; a backend of other people counts for nothing."""
    gpus: set[int] = set()
    servers: set[str] = set()
    devices: dict[str, float] = {}
    names: set[str] = set()
    replays: set[str] = set()
    cores = 0
    for role, spec in engines.items():
        found = str(facts.get(role, {}).get("device", spec.get("device")))
        if spec["backend"] == "sim":
            rate = spec["device"]["flops_per_s"]
            devices[spec["device"]["name"]] = math.inf if rate is None else float(rate)  # JSON has no infinity
        elif spec["backend"] == "replay":
            replays.add(spec["run"])
            names.update([found] if found != "None" else ())
        elif spec["backend"] == "openai":
            servers.update([spec["base_url"]] if isinstance(spec["base_url"], str) else spec["base_url"])
        elif spec["backend"] in ("torch", "vllm") and found.lower() == "cpu":
            cores += int(spec["threads"])
        elif spec["backend"] == "torch":
            gpus.add(int(found.rpartition(":")[2]) if ":" in found else 0)
        elif spec["backend"] == "vllm":
            gpus.update(spec["devices"] or range(spec["tensor_parallel_size"]))
            names.update([found] if found != "None" else ())
    return Resources(len(gpus), len(servers), cores, sum(devices.values()), len(replays), tuple(sorted(names | devices.keys())))


def answers(engines: Mapping[str, Mapping[str, Any]], facts: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What the answers of a run are if not those of models: `simulated` or `recorded`. A replay's are what they were then."""
    backends = {role: facts.get(role, {}).get("replayed_backend", spec.get("backend")) for role, spec in engines.items()}
    if "sim" in backends.values():
        return "simulated"
    return "recorded" if any(spec.get("backend") == "replay" for spec in engines.values()) else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number > 1)}" if number else ""
