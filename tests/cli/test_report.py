"""`pipeline report`: what it writes where, and that wrong input is one sentence and exit code 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.options import RunOptions
from pipeline.run.run import run
from tests.support.commands import pipeline

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs `one` and `two` of six problems."""
    place = tmp_path_factory.mktemp("runs")
    for name, graph in (("one", "speccot"), ("two", "target")):
        options = RunOptions(
            graph=ROOT / f"graphs/{graph}.yaml",
            input=(str(ROOT / "datasets/arith/test.parquet"),),
            engines=ROOT / "graphs/engines/sim-instant.yaml",
            limit=6,
            output=place / name,
        )
        assert run(options).exit_code == 0
    return place


def report(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return pipeline("report", *arguments, cwd=cwd)


@pytest.mark.slow
def test_a_report_is_written_where_it_says(folder: Path) -> None:
    done = report(folder, "one")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("report: one/report.html (")
    assert "<h1>Run one</h1>" in (folder / "one/report.html").read_text()
    assert report(folder, "one", "two", "--chains", "0").stdout.startswith("report: report.html (")
    page = (folder / "report.html").read_text()
    assert "<h2>Comparison</h2>" in page
    assert "<h2>Transcripts</h2>" not in page
    assert report(folder, "one", "--output", "mine.html").returncode == 0
    assert sorted(path.name for path in folder.iterdir()) == ["mine.html", "one", "report.html", "two"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere: no such directory; expected a run folder"),
        (["two", "--output", "no/x.html"], "--output no/x.html: no such directory"),
        (["one", "--output", "one/run.json"], "one/run.json: exists and is not a report; choose another file with --output"),
        (["one", "--output", "two"], "--output two: is a directory; expected a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_sentence_and_exit_code_2(folder: Path, arguments: list[str], says: str) -> None:
    done = report(folder, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("package", ["plotly"])
def test_without_the_extra_it_says_how_to_get_it(folder: Path, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from pipeline.cli.main import main; main()"
    command, environment = [sys.executable, "-c", code, "report", "one"], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    remedy = 'pip install "speculative-pipeline[report]"'
    assert done.stderr == f"error: a report needs the package `{package}`, which is not installed: {remedy}\n"
