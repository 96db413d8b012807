"""Values that an engines file has for the params of a graph."""

from pathlib import Path

import pytest

from pipeline.errors import GraphError
from pipeline.graph.loader import load_engines
from pipeline.graph.plugins import engine_specs
from pipeline.session.prepare import load_plan
from tests.support.paths import ROOT, SIM

SCOT = ROOT / "graphs/scot.yaml"


def engines(tmp_path: Path, params: str) -> Path:
    path = tmp_path / "engines.yaml"
    path.write_text(f"params: {params}\n{SIM.read_text()}")
    return path


def test_they_hold_where_set_says_nothing_and_for_that_graph_alone(tmp_path: Path) -> None:
    path = engines(tmp_path, "{scot: {candidates: 3}}")
    assert load_plan(SCOT, path).params["candidates"] == 3
    assert load_plan(SCOT, path, ("candidates=4",)).params["candidates"] == 4
    assert load_plan(ROOT / "graphs/best-of-n.yaml", path).params["candidates"] == 5
    assert load_engines(path, engine_specs()).keys() == {"draft", "target"}
    assert load_plan(SCOT, Path("tiny-scot")).params["adapter"] == "selection"


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ("{scot: {candidatez: 3}}", r"engines.yaml, line 1: \$.params.scot.candidatez: the graph has no such param; did you mean `cand"),
        ("{adapter: selection}", r"\$.params.adapter: expected the params of a graph named `adapter`, such as scot: {adapter: selection}"),
        ("3", r"\$.params: expected a mapping, got `int`"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, params: str, said: str) -> None:
    with pytest.raises(GraphError, match=said):
        load_plan(SCOT, engines(tmp_path, params))
