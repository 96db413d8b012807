"""`pipeline query`: a table, JSON or a file leaves; what is wrong is said in a sentence."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.store.rows import StepRow
from pipeline.store.store import RunStore
from tests.support.commands import pipeline
from tests.support.rows import blank
from tests.support.run_files import write_run_json

SQL = "SELECT decision, count(*) AS n, avg(draft_tokens) AS mean FROM steps GROUP BY decision ORDER BY n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    store = RunStore(write_run_json(tmp_path / "run"))
    store.append("steps", [blank(StepRow, decision=each, draft_tokens=7) for each in ("accepted", "fallback", "accepted")])
    store.close()
    return tmp_path / "run"


def test_a_query_prints_a_table_or_json(run: Path, tmp_path: Path) -> None:
    rows = [line.split() for line in pipeline("query", run, SQL).stdout.splitlines() if line]
    assert (rows[0], *rows[2:]) == (["decision", "n", "mean"], ["fallback", "1", "7"], ["accepted", "2", "7"])
    (tmp_path / "mine.sql").write_text(SQL + ";")
    found = json.loads(pipeline("query", run, tmp_path / "mine.sql", "--json").stdout)
    assert found == [{"decision": "fallback", "n": 1, "mean": 7.0}, {"decision": "accepted", "n": 2, "mean": 7.0}]


def test_the_folder_of_a_sweep_stands_for_its_runs(tmp_path: Path) -> None:
    nothing = pipeline("query", tmp_path, "FROM steps")
    assert (nothing.returncode, nothing.stderr) == (2, f"error: {tmp_path}: holds no run; expected a run folder, with run.json\n")
    for name in ("one", "other"):
        store = RunStore(write_run_json(tmp_path / "sweep/runs" / name))
        store.append("steps", [blank(StepRow)])
        store.close()
    found = json.loads(pipeline("query", tmp_path / "sweep", "SELECT run FROM steps ORDER BY run", "--json").stdout)
    assert found == [{"run": "one"}, {"run": "other"}]


def test_a_query_writes_a_file(run: Path, tmp_path: Path) -> None:
    for name in ("x.parquet", "x.csv", "x.json", "x.jsonl"):
        assert pipeline("query", run, SQL, "-o", tmp_path / name).returncode == 0
    assert pq.read_table(tmp_path / "x.parquet").column("n").to_pylist() == [1, 2]
    assert (tmp_path / "x.csv").read_text() == "decision,n,mean\nfallback,1,7.0\naccepted,2,7.0\n"
    assert [row["n"] for row in json.loads((tmp_path / "x.json").read_text())] == [1, 2]
    assert "exists" in pipeline("query", run, SQL, "-o", tmp_path / "x.csv").stderr


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("FROM step",), "SQL: Table with name step does not exist"),
        (("DELETE FROM steps",), "SQL: expected one query, which begins with"),
        (("SELECT decision::INT FROM steps",), "SQL: Could not convert string"),
        (("nowhere.sql",), "nowhere.sql: cannot be read: no such file"),
        (("FROM steps", "-o", "x.xlsx"), "its name must end in .parquet, .csv, .json, .jsonl"),
    ],
)
def test_what_is_wrong_is_said(run: Path, arguments: tuple[str, ...], said: str) -> None:
    done = pipeline("query", run, *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr
