"""A run folder that others have prepared: links in it never lead to a write elsewhere, and nothing waits at a pipe."""

import os
import shutil
from pathlib import Path

import pytest

from tests.support.commands import pipeline
from tests.support.paths import ROOT, SIM

RUN = ("run", "graphs/speccot.yaml", "--engines", SIM)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a finished run of the first of two problems, beside a file that is not its own."""
    (tmp_path / "problems.csv").write_text("problem,answer\n1 + 1?,2\n2 + 2?,4\n")
    (tmp_path / "foreign").write_text("theirs\n")
    out = tmp_path / "out"
    done = pipeline(*RUN, "--input", tmp_path / "problems.csv", "--limit", "1", "--output", out)
    assert done.returncode == 0, done.stderr
    return out


def commands(folder: Path) -> dict[str, tuple[str | Path, ...]]:
    more = ("--input", folder.parent / "problems.csv", "--limit", "2", "--output", folder, "--resume", "--allow-drift", "limit")
    return {
        "run": (*RUN, *more),
        "grade": ("grade", folder),
        "calibrate": ("calibrate", folder, "--max-calls", "20"),
        "report": ("report", folder),
        "export": ("export", folder, "--as", "perfetto", "--overwrite"),
        "compare": ("compare", folder, "--output", folder / "table.md"),
    }


def names_in(folder: Path) -> list[Path]:
    """Every name that a command may write to, and those that its drafts might have."""
    parts = [f"{table}/part-{number:05}.parquet" for table in ("calls", "steps", "chains") for number in (0, 1)]
    own = [folder / name for name in ("run.json", "report.html", "calibration.yaml", "trace.pftrace", "table.md", *parts)]
    drafts = [path.with_name(draft.format(path.name, os.getpid())) for path in own for draft in ("{}.tmp", ".{}.tmp", ".{}.{}.tmp")]
    return [*own[1:5], *drafts]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run", "grade", "calibrate", "report", "export", "compare"])
def test_a_link_is_replaced_or_refused_and_what_it_leads_to_stays(folder: Path, name: str) -> None:
    foreign = folder.parent / "foreign"
    for path in names_in(folder):
        if not path.exists():
            path.symlink_to(foreign)
    done = pipeline(*commands(folder)[name])
    assert done.returncode in (0, 2), done.stderr
    assert foreign.read_text() == "theirs\n"
    if name == "report":
        assert "report.html: exists and is not a report" in done.stderr
    else:
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("hard", [True, False])
def test_a_lock_that_is_another_file_is_refused_and_left_as_it_is(folder: Path, hard: bool) -> None:
    foreign, lock = folder.parent / "foreign", folder / "run.lock"
    lock.unlink()
    if hard:
        lock.hardlink_to(foreign)
    else:
        lock.symlink_to(foreign)
    for name in ("run", "grade"):
        done = pipeline(*commands(folder)[name])
        assert done.returncode in (1, 2)
        assert str(folder) in done.stderr
        assert done.stderr.count("\n") == 1
        assert foreign.read_text() == "theirs\n"


def test_a_pipe_in_place_of_a_file_is_named_and_nobody_waits_for_it(folder: Path) -> None:
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")
    given = ("--input", folder.parent / "problems.csv")
    asked = [("resume", folder), ("report", folder), ("compare", folder), ("calibrate", folder), ("export", folder, "--as", "perfetto")]
    for each in (*asked, ("run", "graphs/speccot.yaml", "--engines", f"replay:{folder}", *given)):
        done = pipeline(*each)
        assert done.returncode == 2
        assert "run.json: cannot be read: run.json is a named pipe, not a regular file" in done.stderr


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("GRAPH", "pipe.yaml: cannot be read: pipe.yaml is a named pipe, not a regular file"),
        ("--engines", "pipe.yaml: cannot be read: pipe.yaml is a named pipe, not a regular file"),
        ("--input", "pipe.csv: is not a regular file"),
    ],
)
def test_a_pipe_that_is_given_is_named(tmp_path: Path, option: str, expected: str) -> None:
    given = {"GRAPH": "graphs/speccot.yaml", "--engines": str(SIM), "--input": "datasets/arith/test.parquet"}
    given[option] = str(tmp_path / ("pipe.csv" if option == "--input" else "pipe.yaml"))
    os.mkfifo(given[option])
    graph, *options = (word for name, path in given.items() for word in ((name, path) if name != "GRAPH" else (path,)))
    done = pipeline("run", graph, *options, "--output", tmp_path / "out")
    assert done.returncode == 2
    assert expected in done.stderr


def test_a_graph_comes_from_a_process_too() -> None:
    """`pipeline graph check <(...)`: a pipe that is open already."""
    reader, writer = os.pipe()
    os.write(writer, (ROOT / "graphs/target.yaml").read_text().replace("engines: ", f"engines: {ROOT}/graphs/").encode())
    os.close(writer)
    done = pipeline("graph", "check", f"/dev/fd/{reader}")
    os.close(reader)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("table", ["calls", "steps", "chains"])
def test_a_table_that_is_a_link_to_that_of_another_run_is_refused(folder: Path, table: str) -> None:
    """Its rows would be read as this run's, and those of this run written there."""
    other = folder.with_name("other")
    folder.rename(other)
    shutil.copytree(other, folder)
    shutil.rmtree(folder / table)
    (folder / table).symlink_to(other / table)
    before = {place: place.read_bytes() for place in other.rglob("*") if place.is_file()}
    said = {
        name: pipeline(*arguments)
        for name, arguments in (commands(folder) | {"check": ("runs", "check", folder), "show": ("show", folder)}).items()
    }
    reads = {name: done for name, done in said.items() if table == "chains" or name in ("run", "check")}
    assert {name: done.returncode for name, done in reads.items()} == dict.fromkeys(reads, 2)
    for name, done in reads.items():
        assert f"{table} is a link, not a folder of the run itself" in done.stderr, name
    assert {place: place.read_bytes() for place in other.rglob("*") if place.is_file()} == before
