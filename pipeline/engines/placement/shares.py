"""The devices of a machine divided among replicas: specs, a machine and a number enter, the share of each leaves.
Pure.

A replica gets as many GPUs as its engines need and, where an engine computes on the CPU, its part of the cores. What an engines file says
about devices counts from 0 in each share.
"""

from collections.abc import Mapping

from msgspec import Struct, structs

from pipeline.engines.cores import ranges
from pipeline.engines.registry import by_backend
from pipeline.engines.torch.backend import cuda_build
from pipeline.engines.vllm.memory import build
from pipeline.errors import UsageError
from pipeline.graph.spec import EngineSpec
from pipeline.system.machine import Gpu, Machine

Specs = Mapping[str, EngineSpec]


class DeviceShare(Struct, frozen=True, kw_only=True):
    """The devices of one replica."""

    gpus: tuple[Gpu, ...] = ()
    cores: tuple[int, ...] = ()
    """CPU cores by their numbers; empty: any."""

    @property
    def words(self) -> str:
        """The devices for a person, such as `GPU 2-3`; empty where its engines use none of this machine."""
        gpus = f"GPU {ranges([gpu.index for gpu in self.gpus])}" if self.gpus else ""
        cores = f"CPU core{'s' * (len(self.cores) > 1)} {ranges(self.cores)}" if self.cores else ""
        return ", ".join(filter(None, [gpus, cores]))

    @property
    def environment(self) -> dict[str, str]:
        """What has CUDA show these GPUs alone, in the environment of a process; empty where it has none of its own."""
        names = ",".join(gpu.cuda_name for gpu in self.gpus)
        return {"CUDA_VISIBLE_DEVICES": names, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if names else {}

    def own(self, specs: Specs) -> dict[str, EngineSpec]:
        """`specs` with cores that are named by their numbers on the machine."""
        if not self.cores:
            return {**specs}
        return {role: spec if (core := _core(spec)) is None else _with_core(spec, self.cores[core]) for role, spec in specs.items()}


class Division(Struct, frozen=True, kw_only=True):
    """The shares of all replicas."""

    shares: tuple[DeviceShare, ...]
    sentences: tuple[str, ...]
    """What to tell about them."""


def divided(specs: Specs, machine: Machine, count: int) -> Division:
    """The devices of `machine` for `count` replicas with engines of these `specs`; raises `UsageError` where there are too few."""
    devices = [backend.devices(group, machine) for backend, group in by_backend(specs) if backend.devices is not None]
    placed = {role: tuple(found) for each in devices for role, found in each.items()}
    each = max((index + 1 for found in placed.values() for index in found), default=0)
    if each * count > len(machine.gpus):
        raise UsageError(_too_few_gpus(each, len(machine.gpus), count))
    on_cores = {role: specs[role] for role, found in placed.items() if not found or _core(specs[role]) is not None}
    cores = _cores(on_cores, machine, count) if on_cores else [()] * count
    shares = tuple(DeviceShare(gpus=machine.gpus[n * each : (n + 1) * each], cores=cores[n]) for n in range(count))
    least = min(*map(len, cores), len(machine.cores) // count)
    wanted = sum(_threads(spec) for spec in on_cores.values())
    what = f"the engines of a replica want {wanted} CPU cores together, but it has {least}: they slow each other down"
    crowded = [f"warning: --replicas {count}: {what}"] if on_cores and wanted > least else []
    return Division(shares=shares, sentences=(*_words(shares), *crowded))


def part_of(machine: Machine, count: int) -> Machine:
    """The part of `machine` that each of `count` replicas may have; raises `UsageError` where it has GPUs, but too few."""
    gpus = machine.gpus[: len(machine.gpus) // count]
    if machine.gpus and not gpus and (build(machine) == "cuda" or cuda_build(machine)):
        raise UsageError(_too_few_gpus(1, len(machine.gpus), count))
    return structs.replace(
        machine,
        gpus=gpus,
        cores=machine.cores[: max(1, len(machine.cores) // count)],
        memory_bytes=machine.memory_bytes // count,
        free_memory_bytes=machine.free_memory_bytes // count,
    )


def _words(shares: tuple[DeviceShare, ...]) -> list[str]:
    if not shares[0].words:
        return []
    many = f", ..., {shares[-1].words}" if len(shares) > 4 else ""
    return [f"{len(shares)} replicas: {', '.join(share.words for share in shares[: 3 if many else 4])}{many}"]


def _too_few_gpus(each: int, there: int, count: int) -> str:
    needs = f"--replicas {count}: each replica needs {_count(each, 'GPU')}, but this machine has {there or 'none'}"
    most = there // each
    remedy = f"use --replicas {most}{' or fewer' * (most > 1)}" if most else "use engines that compute on the CPU"
    return f"{needs}; {remedy}, or other devices in the engines file"


def _cores(specs: Specs, machine: Machine, count: int) -> list[tuple[int, ...]]:
    """The cores of each replica: equal parts of those of the machine, in their order."""
    there, most = machine.cores, len(machine.cores)
    if most < count:
        what = f"its engines compute on the CPU, but this machine has {_count(most, 'CPU core')}, not one for each replica"
        raise UsageError(f"--replicas {count}: {what}; use --replicas {most}{' or fewer' * (most > 1)}")
    least = most // count
    for role, spec in specs.items():
        if (core := _core(spec)) is not None and (last := core + _threads(spec) - 1) >= least:
            what = f"engine {role!r} names core {last}, but each replica has {_count(least, 'CPU core')} of this machine, counted from 0"
            raise UsageError(f"--replicas {count}: {what}; leave out `core` in the engines file")
    return [there[n * len(there) // count : (n + 1) * len(there) // count] for n in range(count)]


def _core(spec: EngineSpec) -> int | None:
    core: int | None = getattr(spec, "core", None)
    return core


def _with_core(spec: EngineSpec, core: int) -> EngineSpec:
    return structs.replace(spec, core=core)


def _threads(spec: EngineSpec) -> int:
    return int(getattr(spec, "threads", 1))


def _count(number: int, noun: str) -> str:
    return f"a {noun}" if number == 1 else f"{number} {noun}s"
