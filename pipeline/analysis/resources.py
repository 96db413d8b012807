"""What a run had to compute on, and whose answers its are: the facts that its engines stated about themselves enter. Pure.

Engines state them as `pipeline.engine.Engine.facts` says. What the engines of earlier versions left out is filled in from their
settings here and nowhere else.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from pipeline.trace.run_file import RunFile

REQUIRED = ("answers", "devices", "servers")
"""An engine of today states at least one of these."""


class EngineFacts(Struct, frozen=True, kw_only=True):
    """What analyses need of `Engine.facts`."""

    answers: str = "model"
    """`model`, `simulated` or `recorded`."""
    devices: tuple[str, ...] = ()
    """Names; empty where the engine is a device of its own."""
    device_model: str | None = None
    accelerators: int = 0
    cores: int = 0
    flops_per_s: float | None = None
    """Of a simulated device; infinite where it has no bound."""
    servers: tuple[str, ...] = ()
    replay: str | None = None


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


def engine_facts(run: RunFile) -> dict[str, EngineFacts]:
    """The facts of the engines of `run`, by role."""
    return facts_of(run.engines, run.engine_facts)


def facts_of(engines: Mapping[str, Mapping[str, Any]], stated: Mapping[str, Mapping[str, Any]]) -> dict[str, EngineFacts]:
    """The same from the `engines` and `engine_facts` of a `run.json`."""
    return {role: _facts_of_one(role, settings, stated.get(role, {})) for role, settings in engines.items()}


def resources(engines: Iterable[EngineFacts]) -> Resources:
    """What these engines had together; one that states nothing counts for nothing."""
    gpus: set[str] = set()
    servers: set[str] = set()
    rates: dict[str, float] = {}
    names: set[str] = set()
    replays: set[str] = set()
    cores = 0
    for each in engines:
        named = (each.device_model,) if each.device_model else ()
        if each.replay is not None:
            replays.add(each.replay)
            names.update(named or each.devices)
        elif each.flops_per_s is not None:
            rates |= dict.fromkeys(each.devices, each.flops_per_s)
        elif each.accelerators:
            gpus.update(each.devices)
            names.update(named)
        servers.update(each.servers)
        cores += each.cores
    return Resources(len(gpus), len(servers), cores, sum(rates.values()), len(replays), tuple(sorted(names | rates.keys())))


def answers(engines: Iterable[EngineFacts]) -> str | None:
    """What the answers of a run are if not those of models: `simulated` or `recorded`. A replay's are what they were then."""
    found = {each.answers for each in engines}
    return next((kind for kind in ("simulated", "recorded") if kind in found), None)


def devices_of(role: str, engine: EngineFacts) -> tuple[str, ...]:
    """`GPU 0`, the name of a simulated device, the cores of an engine on the CPU; else the engine is a device of its own."""
    return engine.devices or (role,)


def _facts_of_one(role: str, settings: Mapping[str, Any], stated: Mapping[str, Any]) -> EngineFacts:
    if not any(name in stated for name in REQUIRED):
        return _earlier_facts(role, settings, stated)
    facts = msgspec.convert(dict(stated), EngineFacts)
    if facts.answers == "simulated" and facts.replay is None and facts.flops_per_s is None:
        return msgspec.structs.replace(facts, flops_per_s=math.inf)
    return facts


def _earlier_facts(role: str, settings: Mapping[str, Any], stated: Mapping[str, Any]) -> EngineFacts:
    """What the engines that earlier versions had would say today. Of others nothing is known."""
    backend, device = settings.get("backend"), stated.get("device", settings.get("device"))
    if backend == "sim":
        rate = settings["device"].get("flops_per_s")
        rate = math.inf if rate is None else float(rate)  # JSON has no infinity
        return EngineFacts(answers="simulated", devices=(settings["device"]["name"],), flops_per_s=rate)
    if backend == "replay":
        simulated = stated.get("replayed_backend") == "sim"
        model = None if device is None else str(device)
        return EngineFacts(answers="simulated" if simulated else "recorded", device_model=model, replay=str(settings["run"]))
    if backend == "openai":
        addresses = settings["base_url"]
        return EngineFacts(servers=(addresses,) if isinstance(addresses, str) else tuple(addresses))
    if backend not in ("torch", "vllm"):
        return EngineFacts()
    if str(device).lower() == "cpu":
        threads = int(settings.get("threads", 1))
        return EngineFacts(devices=(_cores(role, settings.get("core"), threads),), cores=threads)
    if backend == "torch":
        number = str(device).rpartition(":")[2] if ":" in str(device) else "0"
        return EngineFacts(devices=(f"GPU {number}",), accelerators=1)
    numbers = settings["devices"] or range(settings["tensor_parallel_size"])
    model = None if device is None else str(device)
    return EngineFacts(devices=tuple(f"GPU {number}" for number in numbers), accelerators=len(numbers), device_model=model)


def _cores(role: str, first: int | None, threads: int) -> str:
    """Where no core is named, engines get cores of their own as far as there are enough."""
    if first is None:
        return f"CPU cores of {role}"
    return f"CPU core {first}" if threads == 1 else f"CPU cores {first}-{first + threads - 1}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number > 1)}" if number else ""
