"""What a run had to compute on, from the facts that engines state."""

import math
from pathlib import Path

import pytest

from pipeline.analysis.facts import EngineFacts, Resources, answers, devices_of, engine_facts, resources
from pipeline.errors import InputError
from pipeline.store.run_file import RunFile
from tests.support.run_files import write_run_json


def test_each_replica_has_devices_of_its_own_and_all_ask_the_same_servers() -> None:
    engines = [
        EngineFacts(devices=("GPU 0", "GPU 1"), accelerators=2),
        EngineFacts(devices=("CPU core 0",), cores=1),
        EngineFacts(devices=("one",), flops_per_s=2.0),
        EngineFacts(servers=("http://one",)),
    ]
    found = resources(engines, 3)
    assert found == Resources(gpus=6, servers=1, cores=3, flops_per_s=6.0, names=("one",))
    assert resources(engines, 2) < found, "more is after less"


def gpus(*numbers: int, model: str | None = None) -> EngineFacts:
    return EngineFacts(devices=tuple(f"GPU {number}" for number in numbers), accelerators=len(numbers), device_model=model)


@pytest.mark.parametrize(
    ("engines", "expected", "label"),
    [
        ([EngineFacts(devices=(f"CPU core {core}",), cores=1) for core in (0, 1)], Resources(cores=2), "2 cores"),
        ([EngineFacts(devices=("CPU core 1",), cores=1)] * 2, Resources(cores=1), "1 core"),  # shared
        ([gpus(0), gpus(0)], Resources(gpus=1), "1 GPU"),
        ([gpus(0, model="H200"), gpus(0, 1)], Resources(gpus=2, names=("H200",)), "2 GPUs (H200)"),
        ([EngineFacts(servers=(f"http://{each}",)) for each in "xyx"], Resources(servers=2), "2 servers"),
        ([EngineFacts(devices=("a",), flops_per_s=5.9e14)] * 2, Resources(flops_per_s=5.9e14, names=("a",)), "590 TFLOP/s, simulated (a)"),
        ([EngineFacts(replay="/runs/mine", device_model="H200")] * 2, Resources(replays=1, names=("H200",)), "1 replay (H200)"),
        ([EngineFacts()], Resources(), "unknown"),
    ],
)
def test_engines_that_share_a_device_share_it_here(engines: list[EngineFacts], expected: Resources, label: str) -> None:
    found = resources(engines)
    assert (found, found.label) == (expected, label)


def test_facts_are_read_as_engines_state_them(tmp_path: Path) -> None:
    def facts_of(**stated: dict[str, object]) -> dict[str, EngineFacts]:
        return engine_facts(RunFile.read(write_run_json(tmp_path, engines={role: {} for role in stated}, engine_facts=stated)))

    simulated = facts_of(a={"answers": "simulated", "devices": ["fast"], "more": 1})
    assert (resources(simulated.values()).flops_per_s, answers(simulated.values())) == (math.inf, "simulated")
    recorded = facts_of(a={"answers": "recorded", "replay": "/runs/mine", "devices": ["one"], "flops_per_s": 5.0}, b={})
    assert (resources(recorded.values()), answers(recorded.values())) == (Resources(replays=1, names=("one",)), "recorded")
    assert answers([*recorded.values(), *simulated.values()]) == "simulated"
    assert [devices_of(role, each) for role, each in recorded.items()] == [("one",), ("b",)]
    with pytest.raises(InputError, match=r"engine_facts\.a: .*Expected `array`"):
        facts_of(a={"devices": 7})
