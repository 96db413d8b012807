"""`pipeline export`, `show` and `runs`: what a user gets at, without code."""

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.commands import pipeline
from tests.support.runs import solve, write_problems

pytestmark = pytest.mark.slow  # whole runs

BAD = (b'{"problem_id": "empty", "level": "hard"}',)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `one` of twelve problems and a bad row, and a run `two` with three samples of each."""
    folder = tmp_path_factory.mktemp("results")
    problems = write_problems(folder, 12, BAD)
    solve(folder, "one", input=problems)
    solve(folder, "two", graph="scot", input=problems, samples=3)
    return folder


def test_answers_as_a_file_of_each_format(source: Path, tmp_path: Path) -> None:
    for name in ("answers.jsonl", "answers.csv", "answers.parquet"):
        done = pipeline("export", source / "one", "-o", tmp_path / name)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path / name}: 13 problems\n", "")
    lines = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    with (tmp_path / "answers.csv").open(newline="") as file:
        assert [row["problem_id"] for row in csv.DictReader(file)] == [line["problem_id"] for line in lines]
    assert pq.read_table(tmp_path / "answers.parquet", columns=["answer"]).to_pylist() == [{"answer": line["answer"]} for line in lines]


def test_answers_on_standard_output(source: Path) -> None:
    done = pipeline("export", source / "two", "-o", "-", "--thoughts")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert (done.returncode, len(rows)) == (0, 13)
    assert all(row["thought"] and row["samples"] == 3 for row in rows[:12])


def test_training_data_of_a_run(source: Path, tmp_path: Path) -> None:
    done = pipeline("export", source / "one", source / "two", "--as", "sft", "-o", tmp_path / "sft.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    first, *others = done.stdout.splitlines()
    lines = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    assert first.startswith(f"{tmp_path / 'sft.jsonl'}: {len(lines)} rows (")
    assert first.endswith(" of 12 problems")
    assert "left out: 4 chains that failed or were not finished" in others  # the bad row, once in one run and three times in the other
    assert {line["run_id"] for line in lines} == {"one", "two"}


def test_options_that_do_not_fit_what_is_exported(source: Path, tmp_path: Path) -> None:
    for options, says in (
        (("--as", "sft", "-o", "-"), "-o -: only JSON lines of answers or of a table can be printed; name a file"),
        (("--as", "openai-batch", "-o", "-"), "-o -: only JSON lines of answers or of a table can be printed; name a file"),
        (("--as", "openai-batch", "-o", "a.csv"), "a.csv: the batch API's files are JSON lines; name it .jsonl or .jsonl.gz"),
        (("--as", "openai-batch", "--thoughts", "-o", "a.jsonl"), "--thoughts: only with --as answers, not --as openai-batch"),
        ((), "--output is missing"),
        (("--as", "jaeger", "-o", "a"), "--as: 'jaeger' is not one of 'answers', 'openai-batch', 'calls', "),
        (("--as", "perfetto", "-o", "-"), "-o -: only JSON lines of answers or of a table can be printed; name a file"),
        (("--as", "perfetto", "-o", "nowhere/at/all"), "nowhere/at/all: not writable; choose another file with --output"),
        (("--as", "sft", "--thoughts", "-o", "data.jsonl"), "--thoughts: only with --as answers, not --as sft"),
        (("--as", "sft", "--labels", "verdicts", "-o", "data.jsonl"), "--labels: only with --as selection, not --as sft"),
        (("--correct", "-o", "data.jsonl"), "--correct: only with --as sft or selection, not --as answers"),
        (("--as", "sft", "-o", "data.csv"), "data.csv: CSV cannot hold lists; expected a name that ends in"),
        (("-o", "data.xlsx"), "data.xlsx: unknown format; expected a name that ends in .jsonl, .csv or .parquet"),
    ):
        done = pipeline("export", source / "one", *options, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert says in done.stderr
    assert list(tmp_path.iterdir()) == []
    done = pipeline("export", source / "one", source / "two", "-o", tmp_path / "answers.csv")
    says = "error: --as answers: one RUN at a time; several only with --as sft or selection\n"
    assert (done.returncode, done.stderr) == (2, says)


def test_tables_of_the_trace(source: Path, tmp_path: Path) -> None:
    written = pipeline("export", source / "one", "--as", "steps", "-o", tmp_path / "steps.parquet")
    steps = pq.read_table(source / "one/steps").num_rows
    assert (written.returncode, written.stdout) == (0, f"{tmp_path / 'steps.parquet'}: {steps:,} rows\n")
    assert pq.read_table(tmp_path / "steps.parquet").num_rows == steps
    printed = pipeline("export", source / "one", "--as", "steps", "-o", "-").stdout.splitlines()
    assert len(printed) == steps
    assert all("step_text" in json.loads(line) for line in printed)


def test_a_trace_is_not_overwritten(source: Path, tmp_path: Path) -> None:
    command = ("export", source / "one", "--as", "perfetto", "-o", tmp_path / "trace.json")
    calls = pq.read_table(source / "one/calls").num_rows
    done = pipeline(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path / 'trace.json'}: {calls:,} calls; open it in https://ui.perfetto.dev\n"
    refused = pipeline(*command)
    says = f"error: {tmp_path / 'trace.json'}: file exists; choose another file with --output, or add --overwrite\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", says)
    assert pipeline(*command, "--overwrite").returncode == 0


def test_one_chain_step_by_step(source: Path) -> None:
    done = pipeline("show", source / "one", "p3")
    chain = next(row for row in pq.read_table(source / "one/chains").to_pylist() if row["problem_id"] == "p3")
    steps = [row for row in pq.read_table(source / "one/steps").to_pylist() if row["chain_id"] == chain["chain_id"]]
    assert (done.returncode, done.stderr) == (0, "")
    assert "Problem number 3?" in done.stdout
    assert [f"[{row['step_index']}] {row['decision']}" in done.stdout for row in steps] == [True] * len(steps)
    assert f"answer: {chain['answer']}" in done.stdout
    assert len(pipeline("show", source / "one", "p3", "--candidates").stdout) > len(done.stdout)
    assert "12 of 13 solved" in pipeline("show", source / "one").stdout
    assert "Problem number 3?" in pipeline("show", source / "two", "p3", "--attempt", "2").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["p33"], "no finished chain of problem 'p33'; did you mean `p3`?"),
        (["p3", "--attempt", "1"], "no finished attempt 1 at problem 'p3', but 0"),
        (["--attempt", "1"], "--attempt: only with CHAIN; name a problem_id"),
    ],
    ids=str,
)
def test_a_chain_that_is_not_there(source: Path, arguments: list[str], says: str) -> None:
    done = pipeline("show", source / "one", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr


def test_a_table_of_runs(source: Path) -> None:
    done = pipeline("show", source)
    lines = [line.split() for line in done.stdout.splitlines() if line[:3].strip(" ─")]  # others go on with a name
    assert (done.returncode, lines[0]) == (0, ["run", "graph", "models", "state", "chains", "accuracy", "problems/s", "size"])
    assert sorted(line[0] for line in lines[1:]) == ["one", "two"]
    records = {row["folder"]: row for row in map(json.loads, pipeline("show", source, "--json").stdout.splitlines())}
    assert (records["one"]["graph"], records["one"]["state"], records["one"]["chains"], records["one"]["of"]) == (
        "speccot",
        "finished",
        13,
        13,
    )
    assert (records["two"]["chains"], records["two"]["of"]) == (39, 39)
    totals = json.loads((source / "one" / "run.json").read_text())["totals"]
    assert (records["one"]["answers"], records["one"]["accuracy"]) == ("simulated", totals["correct"] / totals["graded"])
    assert records["one"]["bytes"] == sum(path.stat().st_size for path in (source / "one").rglob("*") if path.is_file())


def test_a_folder_of_runs_is_no_run(source: Path, tmp_path: Path) -> None:
    for arguments in (["p3"], ["--failed"], ["--follow"], ["--attempt", "1"]):
        done = pipeline("show", source, *arguments)
        assert (done.returncode, done.stderr) == (2, f"error: {source}: a folder of runs; name one of them\n")
    assert f"{tmp_path}: is not a run folder; " in pipeline("show", tmp_path).stderr
    assert "no such directory; expected a run folder" in pipeline("show", tmp_path / "nothing").stderr
