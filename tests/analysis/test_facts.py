"""What a run had to compute on, from the facts that engines state; what stands beside simulated speeds is what was measured."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench import sharing, token_level
from pipeline.analysis import facts
from pipeline.analysis.facts import TOKEN_LEVEL_ERROR, EngineFacts, Resources, answers, devices_of, engine_facts, resources, stated
from pipeline.errors import InputError
from pipeline.store.run_file import RunFile
from tests.support.paths import ROOT
from tests.support.run_files import write_run_json

MEASURED = json.loads((ROOT / "bench/results/calibration.json").read_bytes())


def gpus(*numbers: int, model: str | None = None) -> EngineFacts:
    return EngineFacts(devices=tuple(f"GPU {number}" for number in numbers), accelerators=len(numbers), device_model=model)


def test_each_replica_has_devices_of_its_own_and_all_ask_the_same_servers() -> None:
    engines = [gpus(0, 1), EngineFacts(devices=("CPU core 0",), cores=1), EngineFacts(devices=("one",), flops_per_s=2.0)]
    engines.append(EngineFacts(servers=("http://one",)))
    assert resources(engines, 3) == Resources(gpus=6, servers=1, cores=3, flops_per_s=6.0, names=("one",))
    assert resources(engines, 2) < resources(engines, 3), "more is after less"


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
    assert (resources(engines), resources(engines).label) == (expected, label)


def test_facts_are_read_as_engines_state_them(tmp_path: Path) -> None:
    def facts_of(**stated: dict[str, Any]) -> dict[str, EngineFacts]:
        return engine_facts(RunFile.read(write_run_json(tmp_path, engines={role: {} for role in stated}, engine_facts=stated)))

    simulated = facts_of(a={"answers": "simulated", "devices": ["fast"], "more": 1})
    assert (resources(simulated.values()).flops_per_s, answers(simulated.values())) == (math.inf, "simulated")
    recorded = facts_of(a={"answers": "recorded", "replay": "/runs/mine", "devices": ["one"], "flops_per_s": 5.0}, b={})
    assert (resources(recorded.values()), answers(recorded.values())) == (Resources(replays=1, names=("one",)), "recorded")
    assert answers([*recorded.values(), *simulated.values()]) == "simulated"
    assert [devices_of(role, each) for role, each in recorded.items()] == [("one",), ("b",)]
    with pytest.raises(InputError, match=r"engine_facts\.a: .*Expected `array`"):
        facts_of(a={"devices": 7})


def test_the_stated_errors_are_those_of_the_results_file_and_of_the_engines() -> None:
    errors = (MEASURED[name] for name in ("median_error", "own_text_error", "token_level_error"))
    assert tuple(each and round(each, 2) for each in errors) == (facts.MEDIAN_ERROR, facts.OWN_TEXT_ERROR, TOKEN_LEVEL_ERROR)
    fitted = [EngineFacts(fit_error=error) for error in (0.1, None, 0.441)]
    assert f"off by a median of {facts.MEDIAN_ERROR:.0%} with recorded text" in stated([])
    assert stated(fitted).endswith("The rates here were fitted, and times of single calls are off by 44.1% on average.")
    said = stated([EngineFacts(), EngineFacts(token_level=True)])
    assert said.endswith(f"Speed-ups by token-level speculation are off by {TOKEN_LEVEL_ERROR:.0%} of printed ones on average.")


def test_the_error_under_mps_is_that_of_the_measured_times_and_no_share_of_a_kernel_has_a_much_smaller_one() -> None:
    error, _ = sharing.errors("mps")
    others = {wait: sharing.errors("mps", wait)[0] for wait in (0.0, 0.3, 0.5, 0.6, 0.8)}
    assert (round(error, 2), min(others.values()) > error, others[0.0] > 9 * error) == (0.06, True, True)
    for cell in sharing.cells("mps"):
        assert not cell.engine_like or cell.simulated == pytest.approx(cell.measured, rel=0.2)


@pytest.mark.slow
def test_the_error_of_token_level_speculation_is_what_its_anchors_give() -> None:
    again = token_level.results()
    assert again["token_level_error"] == pytest.approx(MEASURED["token_level_error"], rel=1e-3)
    assert again["token_level"]["anchors"] == len(token_level.ANCHORS) == MEASURED["token_level"]["anchors"]
    assert again["token_level_fitted_error"] < again["token_level_error"] < again["token_level_roofline_error"] / 1.5
