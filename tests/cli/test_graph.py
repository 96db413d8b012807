"""`pipeline graph show`: where drawings go, and what is refused."""

from pathlib import Path

import pytest

from tests.support.commands import pipeline

SPECCOT = "graphs/speccot.yaml"


def test_the_tree_goes_to_stdout_and_other_formats_where_the_name_says(tmp_path: Path) -> None:
    assert "└─ ● answer: answer" in pipeline("graph", "show", SPECCOT).stdout
    assert pipeline("graph", "show", SPECCOT, "--format", "mermaid").stdout.startswith("flowchart TD\n")
    for name, start in {"a.mmd": "flowchart TD\n", "a.txt": "speccot, digest "}.items():
        done = pipeline("graph", "show", SPECCOT, "--output", tmp_path / name)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert (tmp_path / name).read_text().startswith(start)
    refused = pipeline("graph", "show", SPECCOT, "--output", tmp_path / "a.mmd")
    assert (refused.returncode, refused.stderr.count("file exists; choose another")) == (2, 1)
    assert pipeline("graph", "show", SPECCOT, "--output", tmp_path / "a.mmd", "--overwrite").returncode == 0


@pytest.mark.parametrize(
    ("graph", "values", "code", "said"),
    [
        ("specreason", "statistic: min, sure: -0.7, threshold: 5", 0, ""),
        ("target", "temperature: 0.5, threshold: 5", 0, ""),
        ("specreason", "stages.fallback.temperature: 0.5", 0, ""),
        (
            "target",
            "sure: -0.7, stages.verify.threshold: 5",
            2,
            "sets only `sure`, `stages.verify.threshold`, none of which target has",
        ),
    ],
)
def test_a_preset_that_sets_nothing_of_the_graph_is_refused(tmp_path: Path, graph: str, values: str, code: int, said: str) -> None:
    preset = tmp_path / "tuned.yaml"
    preset.write_text(f"set: {{{values}}}\n")
    done = pipeline("graph", "check", graph, "--preset", preset)
    assert done.returncode == code
    assert (f"--preset {preset}: {said}" in done.stderr) if said else (done.stderr == "")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("tests/graphs/cycle.yaml",), "draft -> fallback -> verify -> draft"),
        ((SPECCOT, "--output", "a.png"), "--output a.png: its name must end in .txt, .mmd, .mermaid, or say --format"),
        ((SPECCOT, "--format", "png"), "'png' is not one of 'text', 'mermaid'"),
        ((SPECCOT, "--set", "candidate=3"), "did you mean `candidates`?"),
    ],
)
def test_what_cannot_be_drawn_is_exit_code_2(arguments: tuple[str, ...], expected: str) -> None:
    done = pipeline("graph", "show", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr
