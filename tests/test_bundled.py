"""Graphs, engines files, reward models and recipes are found by name."""

from pathlib import Path

import pytest

from pipeline.errors import GraphError, UsageError
from pipeline.graph.files import FOLDERS, FileKind, find_file
from pipeline.run.prepare import load_plan
from tests.support.paths import ROOT


@pytest.mark.parametrize("name", ["speccot.yaml", "folder/speccot", "./speccot", "none.yml"])
def test_what_looks_like_a_path_is_one(name: str) -> None:
    assert find_file(name, "graph") == Path(name)


def test_a_file_of_the_same_name_is_meant_and_a_folder_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "target").mkdir()
    assert find_file("target", "graph") == FOLDERS["graph"] / "target.yaml"
    (tmp_path / "speccot").write_text((ROOT / "graphs/target.yaml").read_text().replace("engines/tiny.yaml", "tiny"))
    assert find_file("speccot", "graph") == Path("speccot")
    assert load_plan(Path("speccot")).name == "target"


@pytest.mark.parametrize(
    ("name", "kind", "sentence"),
    [
        ("speccott", "graph", "no graph is named `speccott` and there is no such file; did you mean `speccot`?"),
        ("tinny", "engines file", "no engines file is named `tinny` and there is no such file; did you mean `tiny`?"),
        ("x" * 5000, "reward model", "there is no such file; known are `prm-math-shepherd`, `prm-rlhflow`, `prm-tiny`"),
    ],
)
def test_an_unknown_name_is_one_sentence(name: str, kind: FileKind, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_file(name, kind)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_graph_names_engines_beside_it_or_bundled_ones(tmp_path: Path) -> None:
    graph = tmp_path / "mine.yaml"
    text = (ROOT / "graphs/target.yaml").read_text()
    graph.write_text(text.replace("engines/tiny.yaml", "sim-instant"))
    assert load_plan(graph).engines["target"].backend == "sim"
    (tmp_path / "sim-instant").write_text((ROOT / "graphs/engines/tiny.yaml").read_text())
    assert load_plan(graph).engines["target"].backend == "torch"
    graph.write_text(text.replace("engines/tiny.yaml", "tinny"))
    with pytest.raises(GraphError, match=r"mine\.yaml, line \d+: \$\.engines: no engines file is named `tinny`.*did you mean `tiny`\?"):
        load_plan(graph)
