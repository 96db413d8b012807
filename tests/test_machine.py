"""What `nvidia-smi` answers, which GPUs CUDA would show, and what a container leaves of the memory."""

from pathlib import Path

import psutil
import pytest

from pipeline.machine import GIB, gib, look, memory, parse_gpus, versions, visible

TWO = """0, GPU-aaaa-1, NVIDIA H100 80GB HBM3, 81559, 80944, 570.86.15
1, GPU-bbbb-2, NVIDIA H100 80GB HBM3, 81559, 1000, 570.86.15
"""


def test_each_line_is_a_gpu() -> None:
    found, driver = parse_gpus(TWO)
    assert driver == "570.86.15"
    assert [(uuid, gpu.index, gpu.memory_bytes, gpu.free_bytes) for uuid, gpu in found] == [
        ("GPU-aaaa-1", 0, 81559 << 20, 80944 << 20),
        ("GPU-bbbb-2", 1, 81559 << 20, 1000 << 20),
    ]


def test_memory_that_the_driver_does_not_tell_is_unknown() -> None:
    [(_, gpu)], driver = parse_gpus("0, GPU-c, NVIDIA GB10, [N/A], [N/A], 580.1\n")
    assert (gpu.name, gpu.memory_bytes, gpu.free_bytes, driver) == ("NVIDIA GB10", None, None, "580.1")


@pytest.mark.parametrize(
    "text", ["", "No devices were found\n", "Failed to initialize NVML: Driver/library version mismatch", "0, a, b", "x,y,z,1,2,3"]
)
def test_what_is_no_gpu_is_skipped(text: str) -> None:
    assert parse_gpus(text) == ([], None)


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
    ],
)
def test_cuda_visible_devices_maps_indices(wanted: str | None, expected: list[str]) -> None:
    shown = visible(parse_gpus(TWO)[0], wanted)
    assert [gpu.cuda_name for gpu in shown] == expected
    assert [gpu.index for gpu in shown] == list(range(len(expected)))


def test_a_container_s_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB // 2}\n")
    (tmp_path / "memory.stat").write_text(f"anon {GIB // 4}\ninactive_file {GIB // 8}\n")
    assert memory(tmp_path) == (GIB, GIB // 2 + GIB // 8)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory(tmp_path)[0] == psutil.virtual_memory().total


def test_a_look_finds_cores_memory_and_packages() -> None:
    machine = look()
    assert machine.cores
    assert 0 < machine.free_memory_bytes <= machine.memory_bytes
    assert {"python", "msgspec"} <= set(versions(["msgspec", "no-such-package"]))
    assert (machine.cuda, machine.cuda_usable, machine.mps) == (None, None, None)


def test_a_machine_without_nvidia_smi_has_no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (look().gpus, look().driver) == ((), None)


def test_an_nvidia_smi_that_fails_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\necho '{TWO}'\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert look().gpus == ()


def test_nvidia_smi_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nprintf '{TWO}'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    machine = look()
    assert [(gpu.index, gpu.cuda_name) for gpu in machine.gpus] == [(0, "1")]
    assert machine.driver == "570.86.15"


def test_sizes_are_printed_in_gib() -> None:
    assert gib(3 * GIB // 2) == "1.5 GiB"
