"""`pipeline sweep`: one table and one line of advice, study files, and a choice of settings."""

from pathlib import Path

import pytest

from pipeline.cli.main import run_command
from pipeline.graph.load import load_preset
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems

SPECCOT = str(ROOT / "graphs/speccot.yaml")
SHORT = ["--set", "engines.*.text.steps_mean=3"]
STUDY = f"""
title: Two systems
source: Nobody, table 9
systems: [speccot]
engines: [{SIM}]
set: {{"engines.*.text.steps_mean": 3}}
data: [arith]
limit: 6
batch_sizes: [1, 4]
tables: [speccot-6]
"""


@pytest.mark.slow
def test_a_sweep_prints_one_table_and_where_it_pays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    problems, folder = str(write_problems(tmp_path, 6)), tmp_path / "sweep"
    arguments = ["sweep", SPECCOT, "--input", problems, "--engines", str(SIM), "--batch-size", "1,4", "--output", str(folder), *SHORT]
    arguments += ["--baseline-engines", "sim-2xh100-eagle3"]
    assert run_command([*arguments, "--dry-run"]) == 0
    out, _ = capfd.readouterr()
    assert "speccot: target, speccot, target on sim-2xh100-eagle3; batch size 1, 4: 6 runs" in out
    assert "6 runs, 6 of them simulated. Tables: none." in out
    assert not folder.exists()
    assert run_command(arguments) == 0
    out, err = capfd.readouterr()
    assert out.count("Throughput by batch size") == 1
    assert "sim-2xh100-eagle3 *" in out, "the best baseline"
    assert "|" not in out, "Markdown is for files"
    assert "speccot against target on sim-2xh100-eagle3: " in " ".join(out.split())
    assert "this simulator is off by a median of" in " ".join(out.split())
    assert f"{folder}/report.html" in out.replace("\n", "")
    assert "6 problems are few for batch size 4" in err
    assert "target: given the unused memory of the other engines (--set engines.target.kv_cache_tokens=298611)" in err
    assert "warning: speccot against target: max_steps is 256, the baseline has none" in err
    assert "6/6 " in err
    assert run_command([*arguments, "--resume"]) == 0
    again = capfd.readouterr()
    assert (again.out, "6/6" in again.err) == (out, False)


@pytest.mark.slow
def test_a_study_file_prints_what_it_would_run_and_then_its_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(STUDY)
    assert run_command(["sweep", str(file), "--dry-run"]) == 0
    out, _ = capfd.readouterr()
    assert out.splitlines()[0] == "Two systems (Nobody, table 9)"
    assert "arith limit=6: target, speccot; batch size 1, 4: 4 runs" in out
    assert "4 runs, 4 of them simulated. Tables: speccot-6." in out
    assert run_command(["sweep", str(file), "--output", str(folder)]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("Wall time and throughput by batch size (SpecCoT table 6")
    assert "speccot over arith limit=6, batch size 4: 6 chains in " in err
    assert "<title>Study Two systems (Nobody, table 9)</title>" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_settings_that_lose_little_are_written_as_a_preset_else_the_exit_code_is_1(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    problems, folder = str(write_problems(tmp_path, 40)), tmp_path / "sweep"
    arguments = ["sweep", SPECCOT, "-i", problems, "--engines", str(SIM), "--batch-size", "4", "--vary", "candidates=1,2", *SHORT]
    assert run_command([*arguments, "--max-loss", "90%", "-o", str(folder)]) == 0
    chosen, command = capfd.readouterr().out.splitlines()[-2:]
    assert "of accuracy at most (95 %). Report accuracy on other problems." in chosen
    assert command.startswith(f"pipeline run {SPECCOT} INPUT --preset {folder}/chosen.yaml --batch-size 4 --set 'engines.*.text")
    assert load_preset(folder / "chosen.yaml").set["candidates"] in (1, 2)
    assert run_command([*arguments, "--max-loss", "0.0001", "-o", str(folder), "--resume"]) == 1
    assert "error: --max-loss 0.01%: no settings are shown to lose less; " in capfd.readouterr().err
