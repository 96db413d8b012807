"""`pipeline runs check` says what a run folder has and what is wrong with it, repairs what can be, and a resumed run is whole again."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.store.folder import hold
from pipeline.store.manifest import FILE
from tests.support.commands import pipeline
from tests.support.hanging_together import check_hangs_together, rows
from tests.support.runs import solve, write_problems

CHAINS = 12


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs of the same problems, `run` and `other`, whose tables have two parts each."""
    folder = tmp_path_factory.mktemp("fsck")
    problems = write_problems(folder, CHAINS)
    for name, seed in (("run", 0), ("other", 1)):
        solve(folder, name, input=problems, seed=seed, limit=5)
        solve(folder, name, input=problems, seed=seed, resume=True, allow_drift=("limit",))
    return folder


@pytest.fixture
def run(source: Path, tmp_path: Path) -> Path:
    """A copy of `run`, beside one of `other`."""
    shutil.copytree(source / "run", tmp_path / "run")
    shutil.copytree(source / "other", tmp_path / "other")
    return tmp_path / "run"


def test_a_sound_folder(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = pipeline("runs", "check", run)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"{run}: finished, 2 sessions"
    assert lines[1].split() == ["table", "parts", "write-ahead", "rows", "MB"]
    assert [line.split()[:4] for line in lines[2:6]] == [
        *([table, "2", "0", str(pq.read_table(run / table).num_rows)] for table in ("calls", "steps", "chains")),
        ["problems", "1", "0", str(pq.read_table(run / "problems").num_rows)],
    ]
    assert lines[6:] == ["sound"]
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert json.loads(pipeline("runs", "check", run, "--json").stdout)["flaws"] == []


def test_what_is_no_run_folder(tmp_path: Path) -> None:
    for options in ((), ("--repair",)):
        done = pipeline("runs", "check", tmp_path, *options)
        assert (done.returncode, done.stderr) == (2, f"error: {tmp_path}: not a run folder: it has neither run.json nor tables\n")
        done = pipeline("runs", "check", tmp_path / "nothing", *options)
        assert (done.returncode, done.stderr) == (2, f"error: {tmp_path}/nothing: no such directory; expected a run folder\n")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_examined_and_not_repaired(run: Path) -> None:
    with hold(run):
        assert "a process is at work in it" in pipeline("runs", "check", run).stdout
        done = pipeline("runs", "check", run, "--repair")
    assert (done.returncode, "this process is at work in it; wait for the end of its earlier run" in done.stderr) == (2, True)


def _swap(run: Path, one: str, other: str) -> None:
    os.rename(run / one, run / "x")
    os.rename(run / other, run / one)
    os.rename(run / "x", run / other)


def _flip(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:2000] + bytes(byte ^ 0xFF for byte in content[2000:2040]) + content[2040:])


EDITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a calls part is missing": (lambda run: (run / "calls/part-00001.parquet").unlink(), "calls/part-00001.parquet is missing"),
    "a steps part is missing": (lambda run: (run / "steps/part-00000.parquet").unlink(), "steps/part-00000.parquet is missing"),
    "a chains part is missing": (lambda run: (run / "chains/part-00000.parquet").unlink(), "chains/part-00000.parquet is missing"),
    "a table is missing": (lambda run: shutil.rmtree(run / "steps"), "steps/part-00000.parquet is missing"),
    "a part is there twice": (
        lambda run: shutil.copy(run / "chains/part-00000.parquet", run / "chains/part-00002.parquet"),
        "chains/part-00002.parquet is a copy of chains/part-00000.parquet",
    ),
    "rows of another run": (
        lambda run: shutil.copy(run.parent / "other/chains/part-00001.parquet", run / "chains/part-00001.parquet"),
        "chains/part-00001.parquet is of another run",
    ),
    "two parts are swapped": (
        lambda run: _swap(run, "calls/part-00000.parquet", "calls/part-00001.parquet"),
        "calls/part-00001.parquet holds what belongs in calls/part-00000.parquet",
    ),
    "tables are swapped": (
        lambda run: _swap(run, "calls/part-00000.parquet", "steps/part-00000.parquet"),
        "steps/part-00000.parquet holds what belongs in calls/part-00000.parquet",
    ),
    "a part is cut": (
        lambda run: os.truncate(run / "calls/part-00000.parquet", 4000),
        "calls/part-00000.parquet is not a complete Parquet file",
    ),
    "a part is garbled": (lambda run: _flip(run / "calls/part-00000.parquet"), "calls/part-00000.parquet cannot be read"),
    "a pipe": (lambda run: os.mkfifo(run / "calls/part-00002.parquet"), "calls/part-00002.parquet is a named pipe, not a regular file"),
    "a link": (
        lambda run: (run / "chains/part-00002.parquet").symlink_to(run.parent / "other/chains/part-00000.parquet"),
        "chains/part-00002.parquet is a link, not a regular file",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("edit", EDITS)
def test_what_is_wrong_is_named_refused_repaired_and_solved_again(source: Path, run: Path, edit: str) -> None:
    change, says = EDITS[edit]
    change(run)
    done = pipeline("runs", "check", run)
    assert (done.returncode, f"wrong: {says}" in done.stdout) == (1, True)
    assert done.stdout.endswith(f"unsound: to repair: pipeline runs check {run} --repair\n")
    if edit != "a part is garbled":  # only who reads every page knows
        refused = pipeline("resume", run)
        assert (refused.returncode, says in refused.stderr) == (2, True)
    mended = pipeline("runs", "check", run, "--repair")
    assert (mended.returncode, mended.stdout.splitlines()[-1]) == (0, "sound")
    assert "repaired: " in mended.stdout
    assert pipeline("resume", run).returncode == 0
    check_hangs_together(run, CHAINS)
    assert said(run) == said(source / "run")


def said(folder: Path) -> dict[str, set[tuple[object, ...]]]:
    return {
        "calls": {(row["request_id"], row["prompt_digest"], str(row["output_token_ids"])) for row in rows(folder, "calls")},
        "steps": {(row["chain_id"], row["step_index"], row["decision"], row["step_text"]) for row in rows(folder, "steps")},
        "chains": {(row["chain_id"], row["answer"], row["stop_reason"], row["calls"]) for row in rows(folder, "chains")},
    }


def test_nothing_is_deleted(run: Path) -> None:
    foreign = run / "calls/part-00007.parquet"
    shutil.copy(run.parent / "other/calls/part-00001.parquet", foreign)
    content = foreign.read_bytes()
    done = pipeline("runs", "check", run, "--repair")
    assert "repaired: calls/part-00007.parquet is of another run: moved to aside/calls/part-00007.parquet" in done.stdout
    assert (run / "aside/calls/part-00007.parquet").read_bytes() == content
    shutil.copy(run / "aside/calls/part-00007.parquet", foreign)
    assert "moved to aside/calls/part-00007.parquet.2" in pipeline("runs", "check", run, "--repair").stdout
    assert pipeline("runs", "check", run).returncode == 0


def test_a_repair_that_was_cut_short_goes_on(run: Path) -> None:
    """It was putting a part back into its own place."""
    os.rename(run / "calls/part-00001.parquet", run / "calls/part-00000.parquet.moved")
    done = pipeline("runs", "check", run, "--repair")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "sound")
    assert "repaired: calls/part-00000.parquet is calls/part-00001.parquet again" in done.stdout
    assert "is missing" not in done.stdout


def test_a_folder_of_an_earlier_version_is_said_to_be_one_and_gets_a_manifest(run: Path) -> None:
    (run / FILE).unlink()
    assert "no manifest (of an earlier version, or lost)" in pipeline("runs", "check", run).stdout
    assert pipeline("runs", "check", run).returncode == 0
    assert pipeline("runs", "check", run, "--repair").stdout.startswith(f"{run}: finished, 2 sessions\n")
    (run / "calls/part-00001.parquet").unlink()
    assert "calls/part-00001.parquet is missing" in pipeline("runs", "check", run).stdout


def test_without_run_json_nothing_can_go_on(run: Path) -> None:
    (run / "run.json").unlink()
    done = pipeline("runs", "check", run, "--repair")
    assert (done.returncode, "wrong: run.json is missing or cannot be read" in done.stdout) == (1, True)
    assert done.stdout.endswith("\nunsound: the rest cannot be repaired\n")


@pytest.mark.parametrize(
    "command", [("compare",), ("report",), ("export", "--as", "perfetto"), ("show", "--failed"), ("graph", "show", "speccot", "--run")]
)
def test_readers_say_what_they_leave_out(run: Path, command: tuple[str, ...]) -> None:
    shutil.copy(run.parent / "other/chains/part-00001.parquet", run / "chains/part-00007.parquet")
    done = pipeline(*command, run)
    assert done.returncode == 0, done.stderr
    assert f"{run}: chains/part-00007.parquet is of another run; it is left out\n" in done.stderr
