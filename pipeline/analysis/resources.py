"""What a run computed on, and whether models gave its answers: facts that engines stated enter, `EngineFacts` and `Resources` leave. Pure.

Engines state them as `pipeline.engine.Engine.facts` says. Facts that the engines of earlier versions did not state are derived
from their settings here and nowhere else.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from pipeline.errors import InputError, reason
from pipeline.store.run_file import RunFile

REQUIRED = ("answers", "devices", "servers")
"""Names of facts; every engine of this version states at least one of them, so without any an earlier version wrote the run."""


class EngineFacts(Struct, frozen=True, kw_only=True):
    """Those of an engine's facts (`Engine.facts`) that analyses use."""

    answers: str = "model"
    """What gives the engine's answers: `model`, `simulated` or `recorded`."""
    devices: tuple[str, ...] = ()
    """Names of the devices that it computes on; empty where they are not known: then it counts as a separate device."""
    device_model: str | None = None
    """For example `NVIDIA H200`."""
    accelerators: int = 0
    """Number of GPUs."""
    cores: int = 0
    """Number of CPU cores that it computes on."""
    flops_per_s: float | None = None
    """Compute rate of a simulated device; infinite where it has no bound; null for real devices."""
    servers: tuple[str, ...] = ()
    """Addresses of the servers that it sends requests to."""
    replay: str | None = None
    """The run folder whose recorded answers it gives; null for other engines."""
    kv_cache_tokens: int | None = None
    """Tokens whose keys and values fit into its cache."""
    fit_error: float | None = None
    """Of a simulated engine with fitted rates: the mean error of its calls' times, |ln|."""


class Resources(Struct, frozen=True, order=True):
    """What all engines of a run computed on together; sorts from less to more."""

    gpus: int = 0
    """Distinct GPUs: one that two engines share counts once."""
    servers: int = 0
    """Distinct addresses of servers; what these compute on is not known."""
    cores: int = 0
    """CPU cores of the engines that compute on the CPU."""
    flops_per_s: float = 0.0
    """Sum over distinct simulated devices."""
    replays: int = 0
    """Distinct recorded runs that answered in place of engines."""
    names: tuple[str, ...] = ()
    """Models of the GPUs, as far as engines tell, and names of simulated devices."""

    @property
    def kind(self) -> tuple[bool, ...]:
        """Which amounts are above 0: only resources with the same ones can be compared as more or less."""
        return tuple(amount > 0 for amount in (self.gpus, self.servers, self.cores, self.flops_per_s, self.replays))

    @property
    def label(self) -> str:
        """A short text to print, such as `2 GPUs (NVIDIA H200)`."""
        amounts = [_count(self.gpus, "GPU"), _count(self.servers, "server"), _count(self.cores, "core"), _count(self.replays, "replay")]
        amounts += [f"{self.flops_per_s / 1e12:,.0f} TFLOP/s, simulated"] if self.flops_per_s else []
        named = f" ({', '.join(self.names)})" if self.names else ""
        return " + ".join(filter(None, amounts)) + named or "unknown"


def engine_facts(run: RunFile) -> dict[str, EngineFacts]:
    """The facts of the engines of `run`, by role."""
    return facts_of(run.engines, run.engine_facts)


def facts_of(engines: Mapping[str, Mapping[str, Any]], stated: Mapping[str, Mapping[str, Any]]) -> dict[str, EngineFacts]:
    """The facts of engines by role, from the `engines` (their settings) and `engine_facts` of a `run.json`; raises `InputError`."""
    return {role: _checked_facts(role, settings, stated.get(role, {})) for role, settings in engines.items()}


def replica_count(run: RunFile) -> int:
    """How many replicas were started at once: the most of any session of `run`; 1 where the process itself had the engines."""
    return max((sum(replica.starts > 0 for replica in session.replicas) for session in run.sessions), default=0) or 1


def resources(engines: Iterable[EngineFacts], replicas: int = 1) -> Resources:
    """What these engines computed on together; an engine that states nothing adds nothing.

    Each of several `replicas` has such engines on its own devices; servers and recorded runs are the same ones.
    """
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
    own = (len(gpus) * replicas, len(servers), cores * replicas, sum(rates.values()) * replicas, len(replays))
    return Resources(*own, tuple(sorted(names | rates.keys())))


def answers(engines: Iterable[EngineFacts]) -> str | None:
    """`simulated` or `recorded` where any of the engines' answers are; None where models gave all of them.

    Those of a replayed simulated run are `simulated`.
    """
    found = {each.answers for each in engines}
    return next((kind for kind in ("simulated", "recorded") if kind in found), None)


def of_answers(said: str, made: str | None) -> str:
    """An accuracy as it is printed, with what gave the answers where models did not; `made` is what `answers` says."""
    return said if made is None or said == "-" else f"{said} of {made} answers"


def devices_of(role: str, engine: EngineFacts) -> tuple[str, ...]:
    """Names of the devices of the engine `role`, such as `GPU 0`; its role where they are not known, as a separate device."""
    return engine.devices or (role,)


def shortfall(few: Mapping[str, EngineFacts], many: Mapping[str, EngineFacts]) -> tuple[str, ...]:
    """What a run with `few` engines lacked of what one with `many` had, as clauses; both by role. None where it had all of it.

    It lacked devices where it had less of them, and memory where the other engines took some of its devices' and its own caches were no
    larger for their absence.
    """
    less, more = resources(few.values()), resources(many.values())
    amounts = ((less.gpus, more.gpus), (less.cores, more.cores), (less.flops_per_s, more.flops_per_s), (less.servers, more.servers))
    said = [f"it had {less.label} instead of {more.label}"] if any(ours < theirs for ours, theirs in amounts) else []
    for role, engine in few.items():
        if engine.flops_per_s == math.inf:
            continue  # a device without bounds lacks nothing
        cache, beside = engine.kv_cache_tokens, many[role].kv_cache_tokens if role in many else None
        absent = [other for other in many if other not in few and set(devices_of(other, many[other])) & set(devices_of(role, engine))]
        if absent and cache is not None and beside is not None and cache <= beside:
            said.append(f"the cache of its {role} holds {cache:,} tokens, no more than with {' and '.join(absent)} next to it")
    return tuple(said)


def _checked_facts(role: str, settings: Mapping[str, Any], stated: Mapping[str, Any]) -> EngineFacts:
    try:
        return _facts_of_one(role, settings, stated)
    except msgspec.ValidationError as error:
        raise InputError(f"run.json: $.engine_facts.{role}", str(error)) from error
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"the settings of the backend {settings.get('backend')!r} are incomplete or invalid ({reason(error)})"
        raise InputError(f"run.json: $.engines.{role}", what) from error


def _facts_of_one(role: str, settings: Mapping[str, Any], stated: Mapping[str, Any]) -> EngineFacts:
    if not any(name in stated for name in REQUIRED):
        return _earlier_facts(role, settings, stated)
    facts = msgspec.convert(dict(stated), EngineFacts)
    if facts.answers == "simulated" and facts.replay is None and facts.flops_per_s is None:
        return msgspec.structs.replace(facts, flops_per_s=math.inf)
    return facts


def _earlier_facts(role: str, settings: Mapping[str, Any], stated: Mapping[str, Any]) -> EngineFacts:
    """Facts derived from the settings of an engine that an earlier version had; empty for other backends."""
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
    """The device name of an engine on the CPU; without a `first` core it has cores of its own, which the role names."""
    if first is None:
        return f"CPU cores of {role}"
    return f"CPU core {first}" if threads == 1 else f"CPU cores {first}-{first + threads - 1}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number > 1)}" if number else ""
