"""Which GPUs CUDA would show, and what a machine without a driver has."""

import os
from pathlib import Path

import pytest

from pipeline.system.machine import GIB, Gpu, _cuda_mps_runs, _gpu, look, versions, visible

TWO = [
    ("GPU-aaaa-1", Gpu(index=0, cuda_name="0", name="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB, free_bytes=79 * GIB)),
    ("GPU-bbbb-2", Gpu(index=1, cuda_name="1", name="NVIDIA H100 80GB HBM3", memory_bytes=80 * GIB, free_bytes=GIB)),
]


class Driver:
    """The management library of a machine with two GPUs, of which the second is lost."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index:
            raise self.NVMLError("GPU is lost")
        return "gpu0"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "GH200"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> None:
        raise self.NVMLError("not supported")


def test_a_gpu_that_is_lost_is_left_out_and_shared_memory_is_unknown() -> None:
    gpu = Gpu(index=0, cuda_name="0", name="GH200", memory_bytes=None, free_bytes=None)
    assert [_gpu(Driver(), index) for index in (0, 1)] == [("GPU-gpu0", gpu), None]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, ["0", "1"]),
        ("1,0", ["1", "0"]),
        ("1", ["1"]),
        ("GPU-bbbb-2", ["1"]),
        ("0,7,1", ["0"]),
        ("", []),
        ("-1", []),
        ("MIG-1234", []),
        ("GPU-bbbb-2,GPU-aaaa-1", ["1", "0"]),
        (" 1 , GPU-aaaa-1", ["1", "0"]),
    ],
)
def test_cuda_visible_devices_maps_indices(wanted: str | None, expected: list[str]) -> None:
    shown = visible(TWO, wanted)
    assert [gpu.cuda_name for gpu in shown] == expected
    assert [gpu.index for gpu in shown] == list(range(len(expected)))


def test_a_look_finds_cores_memory_and_packages() -> None:
    machine = look()
    assert machine.cores
    assert 0 < machine.free_memory_bytes <= machine.memory_bytes
    assert {"python", "msgspec"} <= set(versions(["msgspec", "no-such-package"]))


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
