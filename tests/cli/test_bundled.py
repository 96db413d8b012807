"""`pipeline list`, `prepare` and `graph`: what is bundled is listed, data sets become files, plans are checked and drawn."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.cli.bundled import KINDS
from pipeline.graph.files import bundled_files
from tests.support.commands import pipeline

SPECCOT = "graphs/speccot.yaml"


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_everything_bundled_is_listed_with_what_it_is(kind: str | None) -> None:
    words = [] if kind is None else [kind]
    found = json.loads(pipeline("list", *words, "--json").stdout)
    assert all(row["name"] and row["about"] for row in found)
    printed = pipeline("list", *words).stdout
    assert all(row["name"] in printed for row in found)
    assert "None" not in printed
    names = [row["name"] for row in found]
    form = None if kind is None else KINDS[kind][1]
    assert sorted(names) == sorted(KINDS if kind is None else names if form is None else bundled_files(form))
    if kind == "graphs":
        assert names[:4] == ["speccot", "specreason", "scot", "target"]


def test_a_data_set_is_prepared_in_the_folder_data(tmp_path: Path) -> None:
    done = pipeline("prepare", "arith", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("data/arith.parquet: 500 problems, digest ")
    assert pq.read_metadata(tmp_path / "data/arith.parquet").num_rows == 500
    (tmp_path / "one.jsonl").write_text('{"question": "x", "answer": "#### 1"}\n')
    other = pipeline("prepare", "gsm8k", "--from", "one.jsonl", "-o", "here.parquet", cwd=tmp_path)
    assert (other.returncode, other.stdout.startswith("here.parquet: 1 problems, digest ")) == (0, True)
    assert other.stderr.startswith("warning: one.jsonl: 1 rows with the digest ")


def test_a_plan_as_text_as_json_and_as_a_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = pipeline("graph", "check", SPECCOT)
    assert done.stdout.startswith(f"{SPECCOT}: OK\nspeccot, digest ")
    assert "↻ reason: repeat" in done.stdout
    assert json.loads(pipeline("graph", "check", SPECCOT, "--json").stdout)["graph"]["name"] == "speccot"
    assert "\n● answer: answer" in pipeline("graph", "show", SPECCOT).stdout
    assert pipeline("graph", "show", SPECCOT, "--format", "mermaid").stdout.startswith("flowchart TD\n")
    chosen = pipeline("graph", "check", "speccot", "--model", "target=bundled:tiny-target", "--model", "draft=bundled:tiny-draft")
    assert chosen.stderr.startswith("engines: target bundled:tiny-target (")
    assert chosen.stderr.splitlines()[0].endswith("; prompts: default")
    assert "● target  torch" in chosen.stdout


def test_a_preset_may_set_what_the_graph_has_in_part(tmp_path: Path) -> None:
    preset = tmp_path / "tuned.yaml"
    for graph, values in (
        ("specreason", "statistic: min, sure: -0.7, threshold: 5"),
        ("target", "temperature: 0.5, threshold: 5"),
        ("specreason", "stages.fallback.temperature: 0.5"),
    ):
        preset.write_text(f"set: {{{values}}}\n")
        done = pipeline("graph", "check", graph, "--preset", preset)
        assert (done.returncode, done.stderr) == (0, "")
