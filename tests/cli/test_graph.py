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


@pytest.mark.parametrize(
    ("graph", "values", "code", "said"),
    [
        ("specreason", "statistic: min, sure: -0.7, threshold: 5", 0, ""),
        ("target", "temperature: 0.5, threshold: 5", 0, ""),
        ("specreason", "stages.fallback.temperature: 0.5", 0, ""),
        ("target", "sure: -0.7, stages.verify.threshold: 5", 2, "sets only `sure`, `stages.verify.threshold`, none of which target has"),
    ],
)
def test_a_preset_that_sets_nothing_of_the_graph_is_refused(tmp_path: Path, graph: str, values: str, code: int, said: str) -> None:
    preset = tmp_path / "tuned.yaml"
    preset.write_text(f"set: {{{values}}}\n")
    done = pipeline("graph", "check", graph, "--preset", preset)
    assert done.returncode == code
    assert (f"--preset {preset}: {said}" in done.stderr) if said else (done.stderr == "")
