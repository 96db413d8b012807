"""`pipeline compare`, `query`, `export`, `show` and `view`: what runs hold as tables, answers to questions, files and pages."""

import json
import os
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.analysis.tables import Table, named_queries
from pipeline.cli.console import PlainConsole, print_table
from pipeline.store.rows import StepRow
from pipeline.store.store import RunStore
from tests.support.commands import COMMAND, pipeline
from tests.support.paths import ROOT, TEST_SET
from tests.support.rows import blank
from tests.support.run_files import write_run_json

SQL = "SELECT decision, count(*) AS n, avg(draft_tokens) AS mean FROM steps GROUP BY decision ORDER BY n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three steps."""
    store = RunStore(write_run_json(tmp_path / "run"))
    store.append("steps", [blank(StepRow, decision=each, draft_tokens=7) for each in ("accepted", "fallback", "accepted")])
    store.close()
    return tmp_path / "run"


@pytest.mark.slow
def test_runs_are_compared_by_the_tables_there_are_or_by_a_query(tmp_path: Path) -> None:
    """`query` prints what the tables are made of."""
    runs, ask = ("target", "speccot"), partial(pipeline, cwd=tmp_path)
    for graph in runs:
        assert ask("run", graph, TEST_SET, "--engines", "sim-instant", "-n", "6", "-o", graph).returncode == 0
    printed = ask("compare", *runs)
    assert (printed.returncode, printed.stderr, "**Accuracy and speed**" in printed.stdout) == (0, "", True)
    for suffix, begin in {".md": printed.stdout, ".csv": "run,system,models,", ".json": ask("compare", *runs, "--json").stdout}.items():
        assert ask("compare", *runs, "--output", f"tables{suffix}").stdout == printed.stdout
        assert (tmp_path / f"tables{suffix}").read_text().startswith(begin)
    assert (tmp_path / "tables.md").read_text() == printed.stdout
    by_name = ask("compare", *runs, "--table", "speccot-3").stdout
    (tmp_path / "mine.sql").write_text(named_queries()["speccot-3"].sql)
    assert ask("compare", *runs, "--table", "mine.sql").stdout.splitlines()[2:] == by_name.splitlines()[2:]
    [row] = json.loads(ask("query", *runs, "SELECT run, tokens FROM runs WHERE graph = 'speccot'", "--json").stdout)
    assert (row["run"], row["tokens"]["low"], row["tokens"]["text"][-9:]) == ("speccot", None, "(too few)")
    joined = "SELECT runs.run, samples, count(*) AS n FROM runs JOIN chains USING (run) GROUP BY ALL ORDER BY run"
    found = json.loads(ask("query", *runs, joined, "--json").stdout)
    assert found == [{"run": name, "samples": 1, "n": 6} for name in ("speccot", "target")]


def test_a_query_prints_a_table_or_json_or_writes_a_file(run: Path, tmp_path: Path) -> None:
    rows = [line.split() for line in pipeline("query", run, SQL).stdout.splitlines() if line]
    assert (rows[0], *rows[2:]) == (["decision", "n", "mean"], ["fallback", "1", "7"], ["accepted", "2", "7"])
    assert pipeline("query", run, "SELECT count(*) AS n FROM steps").stdout.split()[::2] == ["n", "3"]
    (tmp_path / "mine.sql").write_text(SQL + ";")
    found = json.loads(pipeline("query", run, tmp_path / "mine.sql", "--json").stdout)
    assert found == [{"decision": "fallback", "n": 1, "mean": 7.0}, {"decision": "accepted", "n": 2, "mean": 7.0}]
    for name in ("x.parquet", "x.csv", "x.json", "x.jsonl"):
        assert pipeline("query", run, SQL, "-o", tmp_path / name).returncode == 0
    assert pq.read_table(tmp_path / "x.parquet").column("n").to_pylist() == [1, 2]
    assert (tmp_path / "x.csv").read_text() == "decision,n,mean\nfallback,1,7.0\naccepted,2,7.0\n"
    assert [row["n"] for row in json.loads((tmp_path / "x.json").read_text())] == [1, 2]


def test_the_folder_of_a_sweep_stands_for_its_runs(tmp_path: Path) -> None:
    for name in ("one", "other"):
        store = RunStore(write_run_json(tmp_path / "sweep/runs" / name))
        store.append("steps", [blank(StepRow)])
        store.close()
    found = json.loads(pipeline("query", tmp_path / "sweep", "SELECT run FROM steps ORDER BY run", "--json").stdout)
    assert found == [{"run": "one"}, {"run": "other"}]


def test_json_has_what_no_json_has_as_null_and_equal_names_by_number(run: Path) -> None:
    sql = "SELECT 'NaN'::DOUBLE AS a, 1 AS a, [1.5, '-inf'::DOUBLE] AS b, 'NaN' AS c"
    assert json.loads(pipeline("query", run, sql, "--json").stdout) == [{"a": None, "a_1": 1, "b": [1.5, None], "c": "NaN"}]
    assert json.loads(pipeline("query", run, "FROM steps WHERE false", "--json").stdout) == []


MEASURED = """
import sys
from pipeline.cli.main import run_command
assert run_command(sys.argv[1:]) == 0
print(*[line for line in open("/proc/self/status") if line.startswith("VmHWM")], file=sys.stderr)
"""
"""A command, and the most memory that it had; what `wait4` says counts the memory of the process that started it."""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["--json", "-o x.json", "-o x.jsonl", "-o x.csv", "-o x.parquet"])
def test_a_result_need_not_fit_in_memory(run: Path, tmp_path: Path, form: str) -> None:
    sql = "SELECT repeat(chr((65 + range % 26)::INT), 1000) || hash(range) AS x FROM range(400_000)"
    with (tmp_path / "printed").open("wb") as out:
        command = [sys.executable, "-c", MEASURED, "query", str(run), sql, *form.split()]
        done = subprocess.run(command, cwd=tmp_path, stdout=out, stderr=subprocess.PIPE, text=True, check=True)
    assert int(done.stderr.split()[-2]) < 300 << 10  # KiB, of a result of 400 MiB


@pytest.mark.slow
def test_a_file_that_is_not_named_is_named_after_the_run(source: Path, tmp_path: Path) -> None:
    steps, calls = (pq.read_table(source / "one" / name).num_rows for name in ("steps", "calls"))
    for kind, says in (
        ("answers", "one-answers.csv: 13 problems\n"),
        ("steps", f"one-steps.parquet: {steps:,} rows\n"),
        ("openai-batch", "one-openai-batch.jsonl: 12 answered\none-openai-batch.errors.jsonl: 1 error\n"),
        ("perfetto", f"one-perfetto.json: {calls:,} calls; open it in https://ui.perfetto.dev\n"),
    ):
        done = pipeline("export", source / "one", "--as", kind, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, says, "")
    assert pq.read_table(tmp_path / "one-steps.parquet").num_rows == steps
    first, *others = pipeline("export", source / "one", source / "two", "--as", "sft", cwd=tmp_path).stdout.splitlines()
    assert first.startswith(f"one-sft.jsonl: {len((tmp_path / 'one-sft.jsonl').read_text().splitlines())} rows (")
    assert "left out: 4 chains that failed or were not finished" in others, "the bad row, once in one run and three times in the other"
    printed = pipeline("export", source / "one", "--as", "steps", "-o", "-").stdout.splitlines()
    assert (len(printed), all("step_text" in json.loads(line) for line in printed)) == (steps, True)
    answers = [json.loads(line) for line in pipeline("export", source / "two", "-o", "-", "--thoughts").stdout.splitlines()]
    assert (len(answers), all(row["thought"] and row["samples"] == 3 for row in answers[:12])) == (13, True)


@pytest.mark.parametrize(("width", "first"), [(80, "run system models speed"), (45, "run first-run second-run"), (30, "run system")])
def test_a_table_that_is_too_wide_is_turned_or_goes_on_below(width: int, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tuple((name, "speccot", "name-of-models", "1.25") for name in ("first-run", "second-run"))
    console = PlainConsole()
    console.width = width
    print_table(Table("", ("run", "system", "models", "speed"), rows), console)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0].split() == first.split()
    assert max(map(len, lines)) <= width
    assert all(any(word in line for line in lines) for row in rows for word in row), "nothing is cut"


@pytest.mark.slow
def test_how_far_a_run_is_told_until_it_ends(source: Path) -> None:
    done = pipeline("show", source / "one", "--follow")
    assert (done.returncode, done.stdout.startswith("one: finished, 13/13 chains · 1 failed · ")) == (0, True)
    found = json.loads(pipeline("show", source / "one", "--follow", "--json").stdout)
    assert [found[name] for name in ("state", "chains", "of", "failed", "graded")] == ["finished", 13, 13, 1, 12]


@pytest.mark.slow
def test_one_chain_step_by_step_by_its_name_or_its_row(source: Path) -> None:
    done = pipeline("show", source / "one", "p3")
    chain = next(row for row in pq.read_table(source / "one/chains").to_pylist() if row["problem_id"] == "p3")
    steps = [row for row in pq.read_table(source / "one/steps").to_pylist() if row["chain_id"] == chain["chain_id"]]
    assert (done.returncode, done.stderr) == (0, "")
    assert "Problem number 3?" in done.stdout
    assert [f"[{row['step_index']}] {row['decision']}" in done.stdout for row in steps] == [True] * len(steps)
    assert f"answer: {chain['answer']}" in done.stdout
    assert pipeline("show", source / "one", str(chain["input_row"])).stdout == done.stdout
    assert len(pipeline("show", source / "one", "p3", "--candidates").stdout) > len(done.stdout)
    assert "Problem number 3?" in pipeline("show", source / "two", "p3", "--sample", "2").stdout


@pytest.mark.slow
def test_a_run_is_found_by_its_name_in_the_folder_of_runs(source: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(source)
    done = pipeline("show", "one", cwd=tmp_path)
    assert (done.returncode, "12 of 13 solved" in done.stdout) == (0, True)
    assert "1 x BadRow (while reading input): " in pipeline("show", "one", "--failed", cwd=tmp_path).stdout


@pytest.mark.slow
def test_a_table_of_runs(source: Path) -> None:
    done = pipeline("show", source)
    named = {"run", "graph", "state", "chains", "accuracy", "problems/s", "size", "models", "one", "two"}
    assert (done.returncode, named - set(done.stdout.split())) == (0, set())
    records = {row["folder"]: row for row in map(json.loads, pipeline("show", source, "--json").stdout.splitlines())}
    found = records["one"]
    assert [found[name] for name in ("graph", "state", "chains", "of")] == ["speccot", "finished", 13, 13]
    assert (records["two"]["chains"], records["two"]["of"]) == (39, 39)
    totals = json.loads((source / "one" / "run.json").read_text())["totals"]
    assert (found["answers"], found["accuracy"]) == ("simulated", totals["correct"] / totals["graded"])
    assert found["bytes"] == sum(path.stat().st_size for path in (source / "one").rglob("*") if path.is_file())


@pytest.mark.slow
def test_pages_are_served_until_an_interrupt(source: Path) -> None:
    words = [*COMMAND, "view", source, "--port", "0"]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split(" at ")[1].split()[0]
        with urllib.request.urlopen(url) as answer:
            assert "speccot" in answer.read().decode()
    finally:
        process.send_signal(2)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, "")


@pytest.mark.slow
def test_pages_are_written_to_a_file(source: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = pipeline("view", "one", "-o", page, cwd=source)
    assert (done.returncode, done.stderr, done.stdout.startswith(f"page: {page} (")) == (0, "", True)
    assert "<title>Run one</title>" in page.read_text()
    assert pipeline("view", source, "-o", page).returncode == 0
    assert "<h2>Comparison</h2>" in page.read_text(), "the runs in a folder"


@pytest.mark.slow
@pytest.mark.parametrize("package", ["latex2mathml", "uvicorn"])
def test_without_the_extra_it_says_how_to_get_it(tmp_path: Path, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; {COMMAND[-1]}"
    asked = [sys.executable, "-c", code, "view", str(tmp_path)]
    done = subprocess.run(asked, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120)
    remedy = 'pip install "speculative-pipeline[view]"'
    assert (done.returncode, done.stderr) == (2, f"error: view needs the package `{package}`, which is not installed: {remedy}\n")
