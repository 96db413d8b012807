"""`pipeline tune`: a table on stdout, one sentence for every wrong option."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.main import run_command
from pipeline.cli.study.tune import tune
from tests.support.paths import SIM
from tests.support.runs import write_problems


@pytest.mark.slow
def test_the_outcome_is_printed_and_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tuned"
    arguments = [
        "tune",
        "gated",
        "--input",
        str(write_problems(tmp_path, 24)),
        "--engines",
        str(SIM),
        "--max-loss",
        "50%",
        "--confirm",
        "1",
    ]
    arguments += [
        "--set",
        "engines.*.text.steps_mean=4",
        "--tune",
        "sure",
        "--tune",
        "threshold",
        "--batch-size",
        "4",
        "--output",
        str(folder),
    ]
    assert run_command([*arguments, "--no-test-set"]) == 0
    out, err = capfd.readouterr()
    assert "| target | measured | 1 |" in out
    assert "| sure=0.0 threshold=9.0 | recorded |" in out
    assert out.count("| confirmed |") == 1
    assert "| predicted |" in out
    assert "Chosen: " in out
    assert "**Settings (simulated)**" in out
    assert "wanted below 50.0 %" in out
    assert f"preset: pipeline run gated --preset {folder}/preset.yaml" in err
    assert "accuracy" in (folder / "tune.html").read_text()
    again = ["run", "gated", "--preset", str(folder / "preset.yaml"), "--engines", str(SIM), "--input", str(tmp_path / "problems.jsonl")]
    assert run_command([*again, "--limit", "2", "--output", str(tmp_path / "run"), "--quiet"]) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--max-loss", "0"], "expected a share above 0 and below 1, such as 0.01 or 1%"),
        (["--max-loss", "100%"], "expected a share above 0 and below 1"),
        (["--max-loss", "little"], "expected a share, such as 0.01 or 1%"),
        (["--max-loss", "1%", "--confirm", "0"], "0 is not in the range"),
        ([], "Missing option '--max-loss'"),
    ],
)
def test_a_wrong_option_is_one_sentence(changes: list[str], message: str) -> None:
    result = CliRunner().invoke(tune, ["gated", "--input", "problems.csv", *changes])
    assert result.exit_code == 2
    assert message in result.output
