"""`pipeline study`: what it would run, and a study from its file to its table."""

from pathlib import Path

import pytest

from pipeline.cli.main import run_command
from tests.support.paths import ROOT, SIM

STUDY = f"""
title: Two systems
source: Nobody, table 9
systems: [speccot]
engines: [{SIM}]
data: [arith]
limit: 6
batch_sizes: [1, 4]
tables: [speccot-6]
"""


@pytest.mark.slow
def test_a_study_prints_what_it_would_run_and_then_its_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "mine.yaml", tmp_path / "out"
    file.write_text(STUDY)
    assert run_command(["study", str(file), "--dry-run"]) == 0
    out, _ = capfd.readouterr()
    assert "Two systems (Nobody, table 9)" in out
    assert "| arith limit=6 | target, speccot | 1, 4 | 1 | 4 |" in out
    assert "4 runs, 4 of them simulated. Tables: speccot-6." in out
    assert not folder.exists()
    assert run_command(["study", str(file), "--output", str(folder)]) == 0
    out, err = capfd.readouterr()
    assert "**Wall time and throughput by batch size (SpecCoT table 6" in out
    assert "All runs are simulated" in out
    assert "speccot, pipelined over arith limit=6, batch size 4, repeat 0: " in err
    assert f"4 of 4 runs in {folder}" in err
    text = (folder / "report.html").read_text()
    assert "<title>Study mine</title>" in text
    assert "Two systems (Nobody, table 9)" in text
    assert "SpecCoT" in text
    assert run_command(["study", str(file), "--output", str(folder), "--resume"]) == 0
    assert capfd.readouterr().out == out
    assert run_command(["view", str(folder), "-o", str(folder / "report.html"), "--overwrite"]) == 0


@pytest.mark.slow
def test_a_study_of_a_paper_names_what_it_needs(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(["study", "specreason-7", "--dry-run"]) == 0
    out, _ = capfd.readouterr()
    assert "aime24: the problems are not in `data/`; prepare them first: pipeline prepare aime24 --from hub" in out
    assert run_command(["study", "specreason-7"]) == 2
    assert "pipeline prepare aime24 --from hub" in capfd.readouterr().err
    assert run_command(["study", "specreasn-7"]) == 2
    assert "no study file is named `specreasn-7` and there is no such file; did you mean `specreason-7`?" in capfd.readouterr().err
    assert [*tmp_path.iterdir()] == []
    assert (ROOT / "graphs/studies/specreason-7.yaml").is_file()
