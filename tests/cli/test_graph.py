"""`pipeline graph check` and `show`: plans as text, JSON and drawings, and what is refused."""

import json
from pathlib import Path

import pytest

from tests.support.commands import pipeline

SPECCOT = "graphs/speccot.yaml"


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
