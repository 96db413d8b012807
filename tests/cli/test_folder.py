"""`pipeline runs check` says what a run folder has and what is wrong with it, and every command that reads one refuses it then."""

import json
import shutil
from pathlib import Path

import pytest

from pipeline.store.folder import hold
from tests.support.commands import pipeline
from tests.support.runs import solve, write_problems

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs of the same problems, `run` and `other`, whose tables have two parts each."""
    folder = tmp_path_factory.mktemp("check")
    problems = write_problems(folder, 12)
    for name in ("run", "other"):
        solve(folder, name, input=problems, limit=5)
        solve(folder, name, input=problems, resume=True, allow_drift=("limit",))
    return folder


@pytest.fixture
def run(source: Path, tmp_path: Path) -> Path:
    """A copy of `run`."""
    return Path(shutil.copytree(source / "run", tmp_path / "run"))


def test_a_sound_folder(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = pipeline("runs", "check", run)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"{run}: finished, 2 sessions", "table        parts   write-ahead          rows          MB"]
    assert [line.split()[:3] for line in lines[2:6]] == [[table, "2", "0"] for table in ("calls", "steps", "chains")] + [
        ["problems", "1", "0"]
    ]
    assert lines[6:] == ["sound"]
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    found = json.loads(pipeline("runs", "check", run, "--json").stdout)
    assert (found["flaws"], found["tables"][2]["rows"]) == ([], 12)
    with hold(run):
        assert "a process is at work in it" in pipeline("runs", "check", run).stdout


def test_what_is_no_run_folder(tmp_path: Path) -> None:
    done = pipeline("runs", "check", tmp_path)
    assert (done.returncode, done.stderr) == (2, f"error: {tmp_path}: not a run folder: it has neither run.json nor tables\n")
    done = pipeline("runs", "check", tmp_path / "nothing")
    assert (done.returncode, done.stderr) == (2, f"error: {tmp_path}/nothing: no such directory; expected a run folder\n")
    assert list(tmp_path.iterdir()) == []


def test_an_unsound_folder_is_said_to_be_so_and_refused(source: Path, run: Path) -> None:
    shutil.copy(source / "other/chains/part-00001.parquet", run / "chains/part-00001.parquet")
    says = f"{run}/chains/part-00001.parquet: belongs to another run; put the files of the run back from a copy, or start a new run"
    done = pipeline("runs", "check", run)
    assert (done.returncode, done.stdout.splitlines()[-2:]) == (1, [f"wrong: {says}", "unsound"])
    readers = (
        ("compare",),
        ("report",),
        ("export", "-o", "-"),
        ("show", "--failed"),
        ("grade",),
    )
    for command in (*readers, ("resume",)):
        refused = pipeline(*command, run)
        assert (refused.returncode, refused.stderr) == (2, f"error: {says}\n"), command
