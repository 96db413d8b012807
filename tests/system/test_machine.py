"""Which GPUs CUDA would show, and what a machine without a driver has."""

import os
import sys
import types
from pathlib import Path
from typing import Any, cast

import pytest

from pipeline.system.machine import GIB, Gpu, cuda_mps, gpus, look, versions


class NVMLError(Exception):
    """The error of the driver's management library."""


def driver(count: int, *, told: bool = True) -> types.ModuleType:
    """That library, on a machine with so many GPUs, whose memory is told or shared with the CPU."""
    found: Any = types.ModuleType("pynvml")

    def memory(handle: int) -> types.SimpleNamespace:
        if not told:
            raise NVMLError("not supported")
        return types.SimpleNamespace(total=80 * GIB, free=79 * GIB)

    found.NVMLError, found.nvmlInit, found.nvmlShutdown = NVMLError, lambda: None, lambda: None
    found.nvmlDeviceGetCount, found.nvmlDeviceGetHandleByIndex = lambda: count, lambda index: index
    found.nvmlDeviceGetName, found.nvmlDeviceGetUUID, found.nvmlDeviceGetMemoryInfo = "H{}".format, "GPU-{}".format, memory
    return cast(types.ModuleType, found)


def test_memory_that_is_shared_with_the_cpu_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(1, told=False))
    assert gpus() == (Gpu(index=0, cuda_name="0", name="H0"),)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, ["0", "1"]),
        ("1,0", ["1", "0"]),
        ("1", ["1"]),
        ("GPU-1", ["1"]),
        ("0,7,1", ["0"]),
        ("", []),
        ("-1", []),
        ("MIG-1234", []),
        ("GPU-1,GPU-0", ["1", "0"]),
        (" 1 , GPU-0", ["1", "0"]),
    ],
)
def test_cuda_visible_devices_maps_indices(wanted: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver(2))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if wanted is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", wanted)
    shown = gpus()
    assert [gpu.cuda_name for gpu in shown] == expected
    assert [gpu.index for gpu in shown] == list(range(len(expected)))


def test_a_look_finds_cores_memory_and_packages() -> None:
    machine = look()
    assert machine.cores
    assert 0 < machine.free_memory_bytes <= machine.memory_bytes
    assert {"python", "msgspec"} <= set(versions(["msgspec", "no-such-package"]))


def test_the_daemon_of_cuda_mps_has_its_pipe_where_programs_look_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", driver(1))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert cuda_mps() is False
    os.mkfifo(tmp_path / "control")
    assert cuda_mps() is True


def test_a_machine_without_a_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert (gpus(), cuda_mps()) == ((), None)
