"""Machines that this is not: `2xH100-80GB` enters, a `Machine` with such GPUs leaves, for plans that are made elsewhere. Pure."""

import re
from collections.abc import Mapping

from msgspec import structs

from pipeline.errors import UsageError, did_you_mean
from pipeline.system.machine import GIB, Gpu, Machine

GPUS: Mapping[str, int] = {
    "A10-24GB": 23028,
    "A40-48GB": 46068,
    "A100-40GB": 40960,
    "A100-80GB": 81920,
    "A6000-48GB": 49140,
    "B200-180GB": 183359,
    "GH200-96GB": 97871,
    "H20-96GB": 97871,
    "H100-80GB": 81559,
    "H200-141GB": 143771,
    "L4-24GB": 23034,
    "L40S-48GB": 46068,
    "RTX3090-24GB": 24576,
    "RTX4090-24GB": 24564,
    "RTX5090-32GB": 32607,
}
"""The memory of each GPU in MiB, as `nvidia-smi` reports it."""
_MIB = 1 << 20
_DRIVER_BYTES = 3 * GIB // 4
"""Memory that the driver keeps on a GPU on which nothing runs: assumed, half a GiB on an H100."""
_MAX_GPUS = 64
_FORM = re.compile(r"(?:(\d{1,4})\s*[xX]\s*)?([A-Za-z0-9][A-Za-z0-9 _.-]*)")
VERSION = "0.32.0"
"""The version of vLLM that such a machine is taken to have."""


def machine_named(text: str) -> Machine:
    """The machine that `text` names, with vLLM installed and nothing running on it; raises `UsageError`.

    Whether CUDA MPS runs there is not known. A GPU that is not in `GPUS` is named by its memory alone: `4x96GB`.
    """
    found = _FORM.fullmatch(text.strip())
    count = int(found[1] or 1) if found else 0
    if found is None or not 1 <= count <= _MAX_GPUS:
        raise UsageError(f"--as {text}: expected NxGPU, such as 2xH100-80GB; GPUs: {', '.join(GPUS)}, or a size such as 4x96GB")
    name, size = _gpu(found[2])
    gpus = (Gpu(index=i, cuda_name=str(i), name=name, memory_bytes=size, free_bytes=size - _DRIVER_BYTES) for i in range(count))
    return Machine(
        cores=tuple(range(8 * count)),
        memory_bytes=1024 * GIB,
        free_memory_bytes=1024 * GIB,
        gpus=tuple(gpus),
        assumed=True,
        versions={"vllm": VERSION, "torch": "2"},
    )


def described(machine: Machine) -> str:
    """The GPUs of a machine in short: `2 x H100-80GB`, or `no GPU`."""
    names = [gpu.name for gpu in machine.gpus]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "no GPU"


def with_gpus(machine: Machine, count: int) -> Machine:
    """`machine` with `count` GPUs that are as its first one."""
    return structs.replace(machine, gpus=tuple(structs.replace(machine.gpus[0], index=i, cuda_name=str(i)) for i in range(count)))


def _gpu(asked: str) -> tuple[str, int]:
    """The name and the bytes of the GPU that is `asked` for; raises `UsageError`."""
    text = re.sub(r"[\W_]", "", asked).upper()
    if (size := re.fullmatch(r"(\d{1,4})GI?B", text)) and int(size[1]):
        return text, int(size[1]) * GIB
    found = [name for name in GPUS if text in (name.replace("-", ""), name.partition("-")[0])]
    if len(found) == 1:
        return found[0], GPUS[found[0]] * _MIB
    if found:
        raise UsageError(f"--as {asked}: say {' or '.join(found)}")
    known = did_you_mean(asked.strip().upper(), GPUS).rstrip("?")
    raise UsageError(f"--as {asked}: unknown GPU; {known}, or give its memory, such as 4x96GB")
