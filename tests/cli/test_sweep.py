"""`pipeline sweep`: tables on stdout, one sentence for every wrong option."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.main import run_command
from pipeline.cli.study.sweep import sweep
from tests.support.paths import SIM
from tests.support.runs import write_problems

ROOT = Path(__file__).parent.parent.parent
SPECCOT = str(ROOT / "graphs/speccot.yaml")


@pytest.mark.slow
def test_a_sweep_prints_its_tables_and_the_crossing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    problems = str(write_problems(tmp_path, 6))
    folder = tmp_path / "sweep"
    arguments = ["sweep", SPECCOT, "--input", problems, "--engines", str(SIM), "--batch-size", "1,4", "--output", str(folder)]
    arguments += ["--baseline-engines", "sim-2xh100-eagle3"]
    assert run_command(arguments) == 0
    out, err = capfd.readouterr()
    assert "**target (simulated)**" in out
    assert "**target on sim-2xh100-eagle3 (simulated)**" in out
    eagle, verdict, error = out.splitlines()[-3:]
    assert eagle.startswith("target on sim-2xh100-eagle3: faster than the target alone at batch size")
    assert verdict.startswith("speccot, pipelined: faster than the target alone at batch size")
    assert verdict.endswith("(not alike: max_steps is 256, the baseline has none).")
    assert error.startswith("Simulated; on our measured points this simulator is off by a median of ")
    assert error.endswith("of printed ones on average.")
    assert "1/6 " in err
    assert "target has the memory of the engines that it does not use: --set engines.target.kv_cache_tokens=298611" in err
    assert '"engines.target.kv_cache_tokens=298611"' in (folder / "sweep.json").read_text()
    assert f"6 of 6 points in {folder}" in err
    assert run_command([*arguments, "--resume"]) == 0
    assert "1/6" not in capfd.readouterr().err


@pytest.mark.slow
def test_placements_of_the_engines_are_compared_by_one_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    problems = str(write_problems(tmp_path, 6))
    files = [part for name in ("sim-2xh100", "sim-2xh100-own") for part in ("--engines", name)]
    arguments = ["sweep", SPECCOT, "--input", problems, *files, "--batch-size", "4", "--output", str(tmp_path / "sweep")]
    assert run_command(arguments) == 0
    out, _ = capfd.readouterr()
    for name in ("sim-2xh100", "sim-2xh100-own"):
        assert f"**target on {name} (simulated)**" in out
        assert f"**speccot on {name}, pipelined (simulated)**" in out
        assert f"| speccot, pipelined | 4 | {name} | " in out
    more = "1,180 TFLOP/s, simulated (h100-0, h100-1), the target alone 590 TFLOP/s, simulated (h100-1)."
    assert f"speccot on sim-2xh100-own, pipelined had {more}" in out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--batch-size", "1,x"], "'x' is not a valid integer"),
        (["--batch-size", "0"], "0 is not in the range"),
        (["--batch-size", "1,1"], "names a value twice"),
        (["--batch-size", "1", "--schedule", "pipelined,sideways"], "'sideways' is not one of"),
        (["--batch-size", "1", "--vary", "candidates"], "expected NAME=VALUE,VALUE,..., for example candidates=1,2,5"),
        (["--batch-size", "1", "--vary", "candidates=1,,2"], "expected NAME=VALUE"),
    ],
)
def test_a_wrong_option_is_one_sentence(changes: list[str], message: str) -> None:
    result = CliRunner().invoke(sweep, [SPECCOT, "--input", "problems.csv", *changes])
    assert result.exit_code == 2
    assert message in result.output
