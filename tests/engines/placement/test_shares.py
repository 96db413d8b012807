"""Devices of a machine divided among replicas."""

from typing import Any

import pytest
from msgspec import structs

from pipeline.engines.placement.machines import machine_named, with_gpus
from pipeline.engines.placement.shares import DeviceShare, divided, part_of
from pipeline.engines.sim.spec import SimSpec
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import UsageError
from pipeline.session.prepare import load_plan
from pipeline.system.machine import GIB, Machine
from tests.support.paths import ROOT, SIM

EIGHT = machine_named("8xH100-80GB")
CPUS = Machine(cores=(0, 1, 2, 3, 8, 9, 10), memory_bytes=16 * GIB, free_memory_bytes=8 * GIB, versions={"torch": "2.13.0+cpu"})


def torch(**fields: Any) -> TorchSpec:
    return TorchSpec(model="bundled:tiny-target", **fields)


def vllm(*devices: int) -> VllmSpec:
    return VllmSpec(model="bundled:tiny-target", devices=devices, tensor_parallel_size=len(devices))


@pytest.mark.parametrize(
    ("specs", "machine", "count", "words"),
    [
        ({"draft": torch(), "target": torch()}, EIGHT, 8, [f"GPU {n}" for n in range(8)]),
        ({"draft": torch(device="cuda:1"), "target": torch()}, EIGHT, 3, ["GPU 0-1", "GPU 2-3", "GPU 4-5"]),
        ({"draft": vllm(3), "target": vllm(0, 1)}, EIGHT, 2, ["GPU 0-3", "GPU 4-7"]),
        ({"draft": torch(device="cpu"), "target": torch()}, with_gpus(EIGHT, 2), 2, ["GPU 0, CPU cores 0-31", "GPU 1, CPU cores 32-63"]),
        ({"draft": torch(), "target": torch()}, CPUS, 2, ["CPU cores 0-2", "CPU cores 3, 8-10"]),
        ({"draft": torch(), "target": torch()}, CPUS, 7, [f"CPU core{' '}{n}" for n in CPUS.cores]),
    ],
)
def test_every_replica_has_devices_of_its_own(specs: dict[str, Any], machine: Machine, count: int, words: list[str]) -> None:
    assert [share.words for share in divided(specs, machine, count).shares] == words


def test_gpus_are_called_as_cuda_does() -> None:
    chosen = structs.replace(EIGHT, gpus=tuple(structs.replace(EIGHT.gpus[n], index=i) for i, n in enumerate((6, 2))))
    shares = divided({"target": torch()}, chosen, 2).shares
    assert [[(gpu.index, gpu.cuda_name) for gpu in share.gpus] for share in shares] == [[(0, "6")], [(1, "2")]]


def test_simulated_engines_and_servers_need_none() -> None:
    plan = load_plan(ROOT / "graphs/speccot.yaml", SIM)
    assert all(isinstance(spec, SimSpec) for spec in plan.engines.values())
    division = divided(plan.engines, CPUS, 100)
    assert (len(division.shares), set(division.shares), division.sentences) == (100, {DeviceShare()}, ())


def test_cores_are_counted_from_0_in_each_share() -> None:
    specs = {"draft": torch(core=0), "target": torch(core=1, threads=2)}
    shares = divided(specs, CPUS, 2).shares
    assert [[spec.core for spec in share.own(specs).values()] for share in shares] == [[0, 1], [3, 8]]  # type: ignore[attr-defined]
    assert shares[0].own({"target": torch()}) == {"target": torch()}


def test_what_is_told_about_them() -> None:
    pair = {"draft": torch(), "target": torch()}
    assert divided(pair, EIGHT, 2).sentences == ("2 replicas: GPU 0, GPU 1",)
    assert divided(pair, EIGHT, 8).sentences == ("8 replicas: GPU 0, GPU 1, GPU 2, ..., GPU 7",)
    crowded = "warning: --replicas 7: the engines of a replica want 2 CPU cores together, but it has 1: they slow each other down"
    assert divided(pair, CPUS, 7).sentences[1:] == (crowded,)


@pytest.mark.parametrize(
    ("specs", "machine", "count", "sentence"),
    [
        (
            {"target": vllm(0, 1)}, EIGHT, 5,
            "--replicas 5: each replica needs 2 GPUs, but this machine has 8; "
            "use --replicas 4 or fewer, or other devices in the engines file",
        ),
        (
            {"target": vllm(0, 1)}, with_gpus(EIGHT, 1), 2,
            "--replicas 2: each replica needs 2 GPUs, but this machine has 1; "
            "use engines that compute on the CPU, or other devices in the engines file",
        ),
        (
            {"target": torch(device="cuda")}, structs.replace(EIGHT, gpus=()), 2,
            "--replicas 2: each replica needs a GPU, but this machine has none; "
            "use engines that compute on the CPU, or other devices in the engines file",
        ),
        (
            {"target": torch()}, CPUS, 8,
            "--replicas 8: its engines compute on the CPU, but this machine has 7 CPU cores, not one for each replica; "
            "use --replicas 7 or fewer",
        ),
        (
            {"target": torch()}, structs.replace(CPUS, cores=(0,)), 2,
            "--replicas 2: its engines compute on the CPU, but this machine has a CPU core, not one for each replica; use --replicas 1",
        ),
        (
            {"draft": torch(core=0), "target": torch(core=2, threads=2)}, CPUS, 2,
            "--replicas 2: engine 'target' names core 3, but each replica has 3 CPU cores of this machine, counted from 0; "
            "leave out `core` in the engines file",
        ),
    ],
)  # fmt: skip
def test_too_few_devices_are_one_sentence(specs: dict[str, Any], machine: Machine, count: int, sentence: str) -> None:
    with pytest.raises(UsageError) as found:
        divided(specs, machine, count)
    assert str(found.value) == sentence


def test_engines_are_chosen_for_a_part_of_the_machine() -> None:
    part = part_of(EIGHT, 3)
    assert ([gpu.index for gpu in part.gpus], len(part.cores), part.memory_bytes) == ([0, 1], 21, 1024 * GIB // 3)
    assert part_of(EIGHT, 1) == EIGHT
    with pytest.raises(UsageError, match=r"^--replicas 9: each replica needs a GPU, but this machine has 8; use --replicas 8 or fewer"):
        part_of(EIGHT, 9)
    assert part_of(CPUS, 2).cores == (0, 1, 2)
