"""What a run had to compute on, from engines as `run.json` states them."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.analysis.resources import Resources, answers, resources
from pipeline.graph.loader import load_engines
from pipeline.graph.plan import settings_of
from pipeline.graph.plugins import engine_specs

ROOT = Path(__file__).parent.parent.parent
A100 = {role: {"device": "NVIDIA A100"} for role in ("draft", "target")}
CPU = {role: {"device": "cpu"} for role in ("draft", "target")}


def stated(name: str, *settings: str) -> dict[str, Any]:
    """An engines file as it stands in a `run.json`."""
    specs = load_engines(ROOT / f"graphs/engines/{name}.yaml", engine_specs(), settings)
    engines = {role: settings_of(spec) for role, spec in specs.items()}
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(engines))
    return found


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
    found = resources(stated(file), facts)
    assert found == expected
    assert found.label == label


def test_a_replay_computes_on_nothing() -> None:
    engines = {role: {"backend": "replay", "run": "/runs/mine"} for role in ("draft", "target")}
    assert resources(engines, {}).label == "1 replay"
    assert resources(engines, {}).kind != Resources(cores=2).kind
    assert resources(engines, A100).label == "1 replay (NVIDIA A100)"


def test_answers_are_those_of_models_unless_said_otherwise() -> None:
    replays = {role: {"backend": "replay", "run": "/runs/mine"} for role in ("draft", "target")}
    assert answers(stated("tiny"), CPU) is None
    assert answers(stated("sim-1xh200"), {}) == "simulated"
    assert answers(replays, {role: {"replayed_backend": "torch"} for role in replays}) == "recorded"
    assert answers(replays, {"draft": {"replayed_backend": "sim"}, "target": {"replayed_backend": "torch"}}) == "simulated"


def test_more_is_after_less_and_kinds_are_told_apart() -> None:
    two, four = resources(stated("qwq-r1_1.5b-2x80gb"), A100), resources(stated("qwq-r1_1.5b-4x80gb"), A100)
    assert two < four
    assert two.kind == four.kind != Resources(cores=2).kind
    assert resources({"draft": {"backend": "of another package"}}, {}).label == "unknown"
