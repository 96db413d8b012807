"""`pipeline sweep`: tables on stdout, one sentence for every wrong option."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.main import run_command
from pipeline.cli.sweep import sweep
from tests.support.paths import SIM
from tests.support.runs import write_problems

ROOT = Path(__file__).parent.parent.parent
SPECCOT = str(ROOT / "graphs/speccot.yaml")


@pytest.mark.slow
def test_a_sweep_prints_its_tables_and_the_crossing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    problems = str(write_problems(tmp_path, 6))
    folder = tmp_path / "sweep"
    arguments = ["sweep", SPECCOT, "--input", problems, "--engines", str(SIM), "--batch-size", "1,4", "--output", str(folder)]
    assert run_command(arguments) == 0
    out, err = capfd.readouterr()
    assert "**target (simulated)**" in out
    assert "**speccot, pipelined (simulated): in the form of SpecCoT's table 6**" in out
    assert out.splitlines()[-1].startswith("speccot, pipelined: faster than the target alone at batch size")
    assert "1/4 target, batch size 1, repeat 0: " in err
    assert f"4 of 4 points in {folder}" in err
    assert run_command([*arguments, "--resume"]) == 0
    assert "1/4" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--batch-size", "1,x"], "'x' is not a valid integer"),
        (["--batch-size", "0"], "0 is not in the range"),
        (["--batch-size", "1,1"], "names a value twice"),
        (["--batch-size", "1", "--schedule", "pipelined,sideways"], "'sideways' is not one of"),
        (["--batch-size", "1", "--vary", "candidates"], "expected NAME=VALUE,VALUE,..., for example candidates=1,2,5"),
        (["--batch-size", "1", "--vary", "candidates=1,,2"], "expected NAME=VALUE"),
        (["--batch-size", "1", "--vary", "a=1", "--vary", "a=2"], "a is varied twice; give all its values at once"),
    ],
)
def test_a_wrong_option_is_one_sentence(changes: list[str], message: str) -> None:
    result = CliRunner().invoke(sweep, [SPECCOT, "--input", "problems.csv", *changes])
    assert result.exit_code == 2
    assert message in result.output
