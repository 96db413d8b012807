"""`pipeline run`, `resume` and `sweep`: what is printed where, what is kept, and in which folder; study files, and a choice of settings."""

import json
import re
import shutil
from contextlib import chdir
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.cli.main import run_command
from pipeline.cli.solve import solved
from pipeline.errors import Interrupted
from pipeline.graph.load import load_preset
from pipeline.graph.plan import Plan
from pipeline.options import RunOptions
from pipeline.run.run import SessionResult, run
from pipeline.store.kept_problems import Problems
from pipeline.store.run_file import RunFile
from pipeline.study.systems import run_baseline
from tests.support.commands import pipeline
from tests.support.paths import ROOT, SIM, TEST_SET
from tests.support.runs import write_problems

SPECCOT = str(ROOT / "graphs/speccot.yaml")
NOBODY = "{backend: openai, base_url: 'http://127.0.0.1:1/v1', model: none, tokenizer: 'bundled:tiny-target', reconnect_s: 0.1}"
"""An engine that cannot be opened: that would be another sentence and another exit code."""
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


def test_a_run_prints_its_summary_and_where_the_answers_are(tmp_path: Path) -> None:
    """With `--json` it alone is on stdout."""
    problems, out = tmp_path / "problems.csv", tmp_path / "out"
    problems.write_text("question,id\nWhat is 1 + 1?,a\nWhat is 2 + 2?,b\n")
    columns = ("--column", "problem=question", "--column", "problem_id=id")
    done = pipeline("run", SPECCOT, problems, "--engines", SIM, *columns, "--json", "--output", out)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["done"], summary["graded"], summary["accuracy"]) == (2, 0, None)
    assert sorted(pq.read_table(out / "chains")["problem_id"].to_pylist()) == ["a", "b"]
    told = pipeline("resume", out).stdout
    assert all(each in told for each in ("2 of 2 solved in ", " of simulated time", f"pipeline export {out} -o answers.csv"))


@pytest.mark.slow
def test_a_baseline_is_solved_after_the_run_and_compared(tmp_path: Path) -> None:
    run = ("run", SPECCOT, "--engines", SIM, "--input", TEST_SET, "--limit", "20", "--output", tmp_path / "out")
    done = pipeline(*run, "--baseline")
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stderr.splitlines() if " 20 problems, " in line] == ["speccot", "target"]
    told = done.stdout
    assert re.search(r"baseline +[0-9.]+x +the target alone: ", told)
    assert "both are simulated" in told
    assert pipeline("resume", tmp_path / "out").stdout == told, "both are finished"
    shutil.rmtree(tmp_path / "out-target")
    assert pipeline("resume", tmp_path / "out").stdout == told, "it is solved again"
    assert pipeline(*run[:-1], tmp_path / "plain").stdout.count("baseline     not run   to compare with the target alone:") == 1


def test_what_is_solved_is_kept_where_its_baseline_is_interrupted(tmp_path: Path) -> None:
    options = RunOptions(graph=Path(SPECCOT), engines=SIM, input=(str(TEST_SET),), limit=2, output=tmp_path / "out", baseline=True)

    def solve(given: RunOptions, plan: Plan | None = None, problems: Problems | None = None) -> SessionResult:
        if given.output != options.output:
            raise Interrupted
        return run(given, problems=problems)

    results, code = solved(solve, options, run_baseline(options))
    assert ([each.done for each in results], code) == ([2], 130)


@pytest.mark.slow
def test_resume_changes_what_its_options_name(tmp_path: Path) -> None:
    run = tmp_path / "runs/mine"
    started = pipeline("run", "speccot", "--engines", SIM, "-i", write_problems(tmp_path, 4), "-n", "2", "-o", run)
    assert started.returncode == 0, started.stderr
    resumed = pipeline("resume", "mine", "-n", "3", "--batch-size", "2", "--engines", "sim-1xh200", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    found = RunFile.read(run)
    assert (found.totals.chains_done, found.options.batch_size) == (3, 2)


@pytest.mark.parametrize(("name", "place"), [("run", "/proc/x/deeper"), ("sweep", "file/deep/run")])
def test_a_folder_that_cannot_be_made_is_named_before_an_engine_starts(tmp_path: Path, name: str, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    folder, engines, problems = tmp_path / place, tmp_path / "engines.yaml", write_problems(tmp_path, 2)
    engines.write_text(f"draft: {NOBODY}\ntarget: {NOBODY}\n")
    before = sorted(tmp_path.rglob("*"))
    done = pipeline(name, SPECCOT, "--batch-size", "4", "--input", problems, "--engines", engines, "--output", folder)
    why = "not a directory" if name == "sweep" else "no such file or directory"
    assert (done.returncode, done.stderr) == (2, f"error: {folder}: cannot be written: {why}\n")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_working_folder_that_is_gone_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gone").mkdir()
    problems = write_problems(tmp_path, 2)
    with chdir(tmp_path / "gone"):
        (tmp_path / "gone").rmdir()
        code = run_command(["run", SPECCOT, "--engines", str(SIM), "--input", str(problems)])
    assert (code, capsys.readouterr().err) == (2, "error: the working folder: no such file or directory\n")


@pytest.mark.torch
@pytest.mark.usefixtures("torch_here")
def test_a_run_on_named_models_is_resumed_on_the_engines_that_were_chosen(tmp_path: Path) -> None:
    run, models = tmp_path / "run", ("--model", "target=bundled:tiny-target", "--model", "draft=bundled:tiny-draft")
    done = pipeline("run", "speccot", *models, "--input", TEST_SET, "--limit", "8", "--output", run)
    assert done.returncode == 0, done.stderr
    assert "engines: target bundled:tiny-target (torch, " in done.stderr
    assert pipeline("resume", run, "--limit", "12").returncode == 0
    found = RunFile.read(run)
    assert (found.totals.chains_done, found.engines["target"]["model"]) == (12, "bundled:tiny-target")


@pytest.mark.slow
def test_a_sweep_prints_one_table_and_where_it_pays(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    words = ["sweep", SPECCOT, "--input", write_problems(tmp_path, 6), "--engines", SIM, "--batch-size", "1,4", *SHORT]
    words += ["--baseline-engines", "sim-2xh100-eagle3", "--output", folder]
    planned = pipeline(*words, "--dry-run").stdout
    assert "speccot: target, speccot, target on sim-2xh100-eagle3; batch size 1, 4: 6 runs" in planned
    assert "6 runs, 6 of them simulated. Tables: none." in planned
    assert not folder.exists()
    done, again = pipeline(*words), pipeline(*words, "--resume")
    assert (done.returncode, done.stdout.count("Throughput by batch size"), "|" in done.stdout) == (0, 1, False), "Markdown is for files"
    shown = " ".join(done.stdout.split())
    assert "sim-2xh100-eagle3 *" in shown, "the best baseline"
    assert "speccot against target on sim-2xh100-eagle3: " in shown
    assert "this simulator is off by a median of" in shown
    assert f"{folder}/report.html" in done.stdout.replace("\n", "")
    assert "6 problems are few for batch size 4" in done.stderr
    assert "target: given the unused memory of the other engines (--set engines.target.kv_cache_tokens=298611)" in done.stderr
    assert "warning: speccot against target: max_steps is 256, the baseline has none" in done.stderr
    assert "6/6 " in done.stderr
    assert (again.returncode, again.stdout, "6/6" in again.stderr) == (0, done.stdout, False)


@pytest.mark.slow
def test_a_study_file_prints_what_it_would_run_and_then_its_table(tmp_path: Path) -> None:
    (file := tmp_path / "mine.yaml").write_text(STUDY)
    planned = pipeline("sweep", file, "--dry-run").stdout
    assert planned.splitlines()[0] == "Two systems (Nobody, table 9)"
    assert "arith limit=6: target, speccot; batch size 1, 4: 4 runs" in planned
    assert "4 runs, 4 of them simulated. Tables: speccot-6." in planned
    done = pipeline("sweep", file, "--output", tmp_path / "out")
    assert (done.returncode, done.stdout.startswith("Wall time and throughput by batch size (SpecCoT table 6")) == (0, True)
    assert "speccot over arith limit=6, batch size 4: 6 chains in " in done.stderr
    assert "<title>Study Two systems (Nobody, table 9)</title>" in (tmp_path / "out/report.html").read_text()


@pytest.mark.slow
def test_settings_that_lose_little_are_written_as_a_preset_else_the_exit_code_is_1(tmp_path: Path) -> None:
    words = [
        "sweep",
        SPECCOT,
        "-i",
        write_problems(tmp_path, 40),
        "--engines",
        SIM,
        "--batch-size",
        "4",
        "--vary",
        "candidates=1,2",
        *SHORT,
    ]
    words += ["-o", folder := tmp_path / "sweep"]
    done = pipeline(*words, "--max-loss", "90%")
    chosen, command = done.stdout.splitlines()[-2:]
    assert (done.returncode, "of accuracy at most (95 %). Report accuracy on other problems." in chosen) == (0, True)
    assert command.startswith(f"pipeline run {SPECCOT} INPUT --preset {folder}/chosen.yaml --batch-size 4 --set 'engines.*.text")
    assert load_preset(folder / "chosen.yaml").set["candidates"] in (1, 2)
    none = pipeline(*words, "--max-loss", "0.0001", "--resume")
    assert (none.returncode, "error: --max-loss 0.01%: no settings are shown to lose less; " in none.stderr) == (1, True)
