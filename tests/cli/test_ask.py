"""`pipeline compare`, `query` and `export`: what runs hold as tables, answers to questions and files."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pyarrow.parquet as pq
import pytest

from pipeline.analysis.tables import Table, named_queries
from pipeline.cli.console import PlainConsole, print_table
from pipeline.store.rows import StepRow
from pipeline.store.store import RunStore
from tests.support.commands import pipeline
from tests.support.paths import TEST_SET
from tests.support.rows import blank
from tests.support.run_files import write_run_json

Ask = Callable[..., CompletedProcess[str]]
SQL = "SELECT decision, count(*) AS n, avg(draft_tokens) AS mean FROM steps GROUP BY decision ORDER BY n"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of six problems: `target` and `speccot`."""
    place = tmp_path_factory.mktemp("runs")
    for graph in ("target", "speccot"):
        assert pipeline("run", graph, TEST_SET, "--engines", "sim-instant", "-n", "6", "-o", place / graph).returncode == 0
    return place


@pytest.fixture
def ask(folders: Path) -> Ask:
    """A command in the folder of the runs."""
    return lambda *arguments: pipeline(*arguments, cwd=folders)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with three steps."""
    store = RunStore(write_run_json(tmp_path / "run"))
    store.append("steps", [blank(StepRow, decision=each, draft_tokens=7) for each in ("accepted", "fallback", "accepted")])
    store.close()
    return tmp_path / "run"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".md", ".csv", ".json"])
def test_tables_are_printed_and_written_as_the_name_ends(ask: Ask, tmp_path: Path, suffix: str) -> None:
    written = tmp_path / f"tables{suffix}"
    done = ask("compare", "target", "speccot", "--output", written)
    assert (done.returncode, done.stderr, "**Accuracy and speed**" in done.stdout) == (0, "", True)
    same = {".md": done.stdout, ".json": ask("compare", "target", "speccot", "--json").stdout}
    assert written.read_text().startswith("run,system,models,") if suffix == ".csv" else written.read_text() == same[suffix]


@pytest.mark.slow
def test_a_table_of_a_paper_is_a_query_over_runs(ask: Ask, folders: Path) -> None:
    """By its name or as a file of one's own; `query` prints what it is made of."""
    by_name = ask("compare", "target", "speccot", "--table", "speccot-3").stdout
    (folders / "mine.sql").write_text(named_queries()["speccot-3"].sql)
    assert ask("compare", "target", "speccot", "--table", "mine.sql").stdout.splitlines()[2:] == by_name.splitlines()[2:]
    [row] = json.loads(ask("query", "target", "speccot", "SELECT run, tokens FROM runs WHERE graph = 'speccot'", "--json").stdout)
    assert (row["run"], row["tokens"]["low"], row["tokens"]["text"][-9:]) == ("speccot", None, "(too few)")
    joined = "SELECT runs.run, samples, count(*) AS n FROM runs JOIN chains USING (run) GROUP BY ALL ORDER BY run"
    found = json.loads(ask("query", "target", "speccot", joined, "--json").stdout)
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
