"""Which GPUs CUDA would show, what a machine without a driver has, and what a container leaves of the memory."""

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pipeline.system import machine
from pipeline.system.machine import GIB, Gpu, _cuda_mps_runs, _gpu, look, memory, versions, visible

TWO = [
    ("GPU-aaaa-1", Gpu(index=0, cuda_name="0", name="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB, free_bytes=79 * GIB)),
    ("GPU-bbbb-2", Gpu(index=1, cuda_name="1", name="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB, free_bytes=GIB)),
]
SLICES = [
    (uuid, Gpu(index=1, cuda_name=uuid, name="NVIDIA H100 80GB HBM3 MIG 3g.40gb", memory_bytes=40 * GIB, free_bytes=39 * GIB))
    for uuid in ("MIG-cccc-1", "MIG-cccc-2", "MIG-GPU-bbbb-2/5/0")
]


class Driver:
    """The management library of a machine with two GPUs, of which the second is cut into two slices, at the first and the third place."""

    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"gpu{index}"

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        if handle == "gpu0":
            raise self.NVMLError("not supported")
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, place: int) -> str:
        if place not in (0, 2):
            raise self.NVMLError("not found")
        return f"slice{place}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return {"g": "GPU-", "s": "MIG-"}[handle[0]] + handle

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "H100" if handle[0] == "g" else "H100 MIG 3g.40gb"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        return SimpleNamespace(total=80 if handle[0] == "g" else 40, free=10)


def test_slices_of_a_gpu_are_found() -> None:
    whole, cut = _gpu(Driver(), 0), _gpu(Driver(), 1)
    assert [(uuid, gpu.cuda_name, gpu.memory_bytes) for uuid, gpu in whole] == [("GPU-gpu0", "0", 80)]
    places = [(f"MIG-slice{place}", f"MIG-slice{place}", 40) for place in (0, 2)]
    assert [(uuid, gpu.cuda_name, gpu.memory_bytes) for uuid, gpu in cut] == [("GPU-gpu1", "1", 40), *places]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, ["0", "1"]),
        ("1,0", ["1", "0"]),
        ("1", ["1"]),
        ("GPU-bbbb", ["1"]),
        ("0,7,1", ["0"]),
        ("", []),
        ("-1", []),
        ("MIG-1234", []),
        ("GPU-bbbb-2,GPU-aaaa-1", ["1", "0"]),
        ("MIG-cccc-1", ["MIG-cccc-1"]),
        ("MIG-cccc", ["MIG-cccc-1"]),
        ("MIG-GPU-bbbb-2/5/0", ["MIG-GPU-bbbb-2/5/0"]),
        (" MIG-cccc-2 , MIG-cccc-1", ["MIG-cccc-2"]),
    ],
)
def test_cuda_visible_devices_maps_indices(wanted: str | None, expected: list[str]) -> None:
    shown = visible(TWO + SLICES, wanted)
    assert [gpu.cuda_name for gpu in shown] == expected
    assert [gpu.index for gpu in shown] == list(range(len(expected)))


def test_a_limit_counts_where_it_is_below_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    total = psutil.virtual_memory().total
    for limits, expected in (([], total), ([(GIB, GIB // 2), (2 * GIB, 1)], GIB), ([(1 << 62, 1 << 62)], total)):
        monkeypatch.setattr(machine, "memory_limits", lambda limits=limits: limits)
        assert memory()[0] == expected
        assert memory()[1] <= min([total, *(free for _, free in limits)])


def test_a_look_finds_cores_memory_and_packages() -> None:
    machine = look()
    assert machine.cores
    assert 0 < machine.free_memory_bytes <= machine.memory_bytes
    assert {"python", "msgspec"} <= set(versions(["msgspec", "no-such-package"]))
    assert (machine.cuda, machine.cuda_usable, machine.mps) == (None, None, None)


def test_the_daemon_of_cuda_mps_has_its_pipe_where_programs_look_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert not _cuda_mps_runs()
    os.mkfifo(tmp_path / "control")
    assert _cuda_mps_runs()


def test_a_machine_without_a_driver_has_no_gpus() -> None:
    machine = look()
    if machine.driver is not None:
        pytest.skip("there is an NVIDIA driver here")
    assert machine.gpus == ()
