"""Every engines file loads, binds to a graph and, of vLLM, names arguments that it has."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from pipeline.engines.vllm.spec import VllmSpec
from pipeline.graph.load import load_engines
from pipeline.run.prepare import load_plan

ROOT = Path(__file__).parent.parent.parent
FILES = sorted((ROOT / "graphs/engines").glob("*.yaml"))
VLLM = [path for path in FILES if "backend: vllm" in path.read_text()]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_engines_file_binds_to_a_graph_and_says_what_it_is(path: Path) -> None:
    assert set(load_plan(ROOT / "graphs/speccot.yaml", path, ()).engines) == {"draft", "target"}
    assert path.read_text().startswith("# ")


def test_a_file_with_an_adapter_differs_in_nothing_else() -> None:
    specs, plain = (load_engines(Path(name)) for name in ("tiny-scot", "tiny"))
    assert {role for role in specs if specs[role] != plain[role]} == {"target"}
    assert load_plan(ROOT / "graphs/scot.yaml", Path("tiny-scot"), ("adapter=selection",)).engines == specs


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed here")
@pytest.mark.parametrize("path", VLLM, ids=lambda path: path.stem)
def test_vllm_has_the_arguments_of_every_file(path: Path) -> None:
    import dataclasses

    from vllm import AsyncEngineArgs

    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    for spec in load_engines(path).values():
        assert isinstance(spec, VllmSpec)
        assert set(spec.args) <= known
