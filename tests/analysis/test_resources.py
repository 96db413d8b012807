"""What a run had to compute on, from engines as `run.json` states them."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.analysis.resources import EngineFacts, Resources, answers, devices_of, facts_of, replica_count, resources, shortfall
from pipeline.graph.loader import load_engines
from pipeline.graph.plan import settings_of
from pipeline.graph.plugins import engine_specs
from pipeline.store.run_file import RunFile

ROOT = Path(__file__).parent.parent.parent
A100 = {role: {"device": "NVIDIA A100"} for role in ("draft", "target")}
CPU = {role: {"device": "cpu"} for role in ("draft", "target")}


def stated(name: str, *settings: str) -> dict[str, Any]:
    """An engines file as it stands in a `run.json`."""
    specs = load_engines(ROOT / f"graphs/engines/{name}.yaml", engine_specs(), settings)
    engines = {role: settings_of(spec) for role, spec in specs.items()}
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(engines))
    return found


def test_each_replica_has_devices_of_its_own_and_all_ask_the_same_servers(replica_runs: dict[int, Path]) -> None:
    engines = [
        EngineFacts(devices=("GPU 0", "GPU 1"), accelerators=2),
        EngineFacts(devices=("CPU core 0",), cores=1),
        EngineFacts(devices=("one",), flops_per_s=2.0),
        EngineFacts(servers=("http://one",)),
    ]
    assert resources(engines, 3) == Resources(gpus=6, servers=1, cores=3, flops_per_s=6.0, names=("one",))
    assert [replica_count(RunFile.read(folder)) for folder in replica_runs.values()] == [1, 2, 4]


def had(engines: dict[str, Any], facts: dict[str, Any]) -> Resources:
    return resources(facts_of(engines, facts).values())


@pytest.mark.parametrize(
    ("file", "facts", "expected", "label"),
    [
        ("tiny", CPU, Resources(cores=2), "2 cores"),
        ("tiny-vllm", CPU, Resources(cores=2), "2 cores"),
        ("tiny", {"draft": {"device": "cuda:0"}, "target": {"device": "cuda:0"}}, Resources(gpus=1), "1 GPU"),
        ("qwq-r1_1.5b-2x80gb", A100, Resources(gpus=2, names=("NVIDIA A100",)), "2 GPUs (NVIDIA A100)"),
        ("r1_32b-r1_1.5b-5x40gb", {}, Resources(gpus=5), "5 GPUs"),
        ("servers", {}, Resources(servers=2), "2 servers"),
        ("sim-instant", {}, Resources(flops_per_s=math.inf, names=("nowhere",)), "inf TFLOP/s, simulated (nowhere)"),
        ("sim-1xh200", {}, Resources(flops_per_s=5.9e14, names=("h200-0",)), "590 TFLOP/s, simulated (h200-0)"),
    ],
)
def test_engines_that_share_a_device_share_it_here(file: str, facts: dict[str, Any], expected: Resources, label: str) -> None:
    found = had(stated(file), facts)
    assert found == expected
    assert found.label == label


def test_a_replay_computes_on_nothing() -> None:
    engines = {role: {"backend": "replay", "run": "/runs/mine"} for role in ("draft", "target")}
    assert had(engines, {}).label == "1 replay"
    assert had(engines, {}).kind != Resources(cores=2).kind
    assert had(engines, A100).label == "1 replay (NVIDIA A100)"


def test_answers_are_those_of_models_unless_said_otherwise() -> None:
    replays = {role: {"backend": "replay", "run": "/runs/mine"} for role in ("draft", "target")}
    assert answers(facts_of(stated("tiny"), CPU).values()) is None
    assert answers(facts_of(stated("sim-1xh200"), {}).values()) == "simulated"
    assert answers(facts_of(replays, {role: {"replayed_backend": "torch"} for role in replays}).values()) == "recorded"
    assert (
        answers(facts_of(replays, {"draft": {"replayed_backend": "sim"}, "target": {"replayed_backend": "torch"}}).values()) == "simulated"
    )


def test_more_is_after_less_and_kinds_are_told_apart() -> None:
    two, four = had(stated("qwq-r1_1.5b-2x80gb"), A100), had(stated("qwq-r1_1.5b-4x80gb"), A100)
    assert two < four
    assert two.kind == four.kind != Resources(cores=2).kind
    assert had({"draft": {"backend": "of another package"}}, {}).label == "unknown"


@pytest.mark.parametrize(
    ("settings", "facts", "names"),
    [
        ({"backend": "sim", "device": {"name": "h100"}}, {}, ("h100",)),
        ({"backend": "torch", "device": "auto", "threads": 2, "core": 2}, {"device": "cpu"}, ("CPU cores 2-3",)),
        ({"backend": "torch", "device": "auto", "threads": 1, "core": 0}, {"device": "cpu"}, ("CPU core 0",)),
        ({"backend": "torch", "device": "auto", "threads": 1, "core": None}, {"device": "cpu"}, ("CPU cores of me",)),
        ({"backend": "torch", "device": "cuda:1"}, {}, ("GPU 1",)),
        ({"backend": "torch", "device": "auto"}, {"device": "cuda"}, ("GPU 0",)),
        ({"backend": "vllm", "devices": (), "tensor_parallel_size": 2}, {"device": "NVIDIA H200"}, ("GPU 0", "GPU 1")),
        ({"backend": "vllm", "devices": (3,), "tensor_parallel_size": 1}, {}, ("GPU 3",)),
        ({"backend": "openai", "base_url": "http://x/v1"}, {}, ("me",)),
        ({}, {}, ("me",)),
        ({"backend": "other"}, {"devices": ["TPU 1"], "more": 1}, ("TPU 1",)),
        ({"backend": "sim", "device": {"name": "h100"}}, {"devices": ["of its own"]}, ("of its own",)),
    ],
)
def test_devices(settings: dict[str, Any], facts: dict[str, Any], names: tuple[str, ...]) -> None:
    assert devices_of("me", facts_of({"me": settings}, {"me": facts})["me"]) == names


def test_engines_of_any_backend_say_what_they_run_on() -> None:
    gpus = [EngineFacts(devices=("GPU 0",), accelerators=1, device_model="H200"), EngineFacts(devices=("GPU 0", "GPU 1"), accelerators=2)]
    assert resources(gpus) == Resources(gpus=2, names=("H200",))
    assert resources([EngineFacts(devices=("CPU cores 0-3",), cores=4), EngineFacts(servers=("http://x",))]) == Resources(
        cores=4, servers=1
    )
    unbound = facts_of({"a": {}}, {"a": {"answers": "simulated", "devices": ["fast"]}})
    assert resources(unbound.values()).flops_per_s == math.inf
    assert answers(unbound.values()) == "simulated"
    replay = facts_of({"a": {}}, {"a": {"answers": "recorded", "replay": "/runs/mine", "devices": ["one"], "flops_per_s": 5.0}})
    assert resources(replay.values()) == Resources(replays=1, names=("one",))
    assert answers(replay.values()) == "recorded"


def sim(*devices: str, rate: float = 1e12, tokens: int = 1000) -> EngineFacts:
    return EngineFacts(answers="simulated", devices=devices, flops_per_s=rate, kv_cache_tokens=tokens)


def test_what_a_baseline_lacked_is_said() -> None:
    draft, beside = sim("card"), sim("card")
    assert shortfall({"target": sim("card", tokens=1500)}, {"draft": draft, "target": beside}) == ()
    assert shortfall({"target": beside}, {"draft": draft, "target": beside}) == (
        "the cache of its target holds 1,000 tokens, no more than with draft next to it",
    )
    assert shortfall({"target": beside}, {"draft": sim("other"), "target": beside}) == (
        "it had 1 TFLOP/s, simulated (card) instead of 2 TFLOP/s, simulated (card, other)",
    )
    # Both cards under one name are no less than each under its own.
    assert shortfall({"target": sim("card+other", rate=2e12)}, {"draft": sim("other"), "target": beside}) == ()
    unbound = sim("card", rate=math.inf)
    assert shortfall({"target": unbound}, {"draft": unbound, "target": unbound}) == ()


def test_gpus_and_cores_that_a_baseline_lacked_are_said() -> None:
    gpus = {f"GPU {index}": EngineFacts(devices=(f"GPU {index}",), accelerators=1) for index in range(2)}
    assert shortfall({"target": gpus["GPU 0"]}, {"target": gpus["GPU 0"], "draft": gpus["GPU 1"]}) == ("it had 1 GPU instead of 2 GPUs",)
    cores = {role: EngineFacts(devices=(f"CPU core {core}",), cores=1) for core, role in enumerate(("draft", "target"))}
    assert shortfall({"target": cores["target"]}, cores) == ("it had 1 core instead of 2 cores",)
    assert shortfall(cores, cores) == ()
