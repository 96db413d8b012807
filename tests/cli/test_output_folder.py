"""A folder that cannot be made is named before any engine starts, with exit code 2, by `run` and by `sweep`."""

from contextlib import chdir
from pathlib import Path

import pytest

from tests.support.commands import pipeline
from tests.support.fuzzing import command
from tests.support.paths import ROOT, SIM
from tests.support.runs import write_problems

NOBODY = "{backend: openai, base_url: 'http://127.0.0.1:1/v1', model: none, tokenizer: 'bundled:tiny-target', reconnect_s: 0.1}"
"""An engine that cannot be opened: that would be another sentence and another exit code."""
COMMANDS = {
    "run": ("run", ROOT / "graphs/speccot.yaml", "--batch-size", "4"),
    "sweep": ("sweep", ROOT / "graphs/speccot.yaml", "--batch-size", "1,4"),
}


@pytest.fixture
def refused(tmp_path: Path) -> str:
    """A place in which no folder can be made, by root either."""
    (tmp_path / "file").write_text("in the way")
    return f"{tmp_path}/file/deep/run"


@pytest.mark.parametrize(("command", "place"), [("run", "/proc/x/deeper"), ("sweep", "a file in the way")])
def test_a_folder_that_cannot_be_made(tmp_path: Path, refused: str, command: str, place: str) -> None:
    folder = refused if place.startswith("a file") else place
    engines = tmp_path / "engines.yaml"
    engines.write_text(f"draft: {NOBODY}\ntarget: {NOBODY}\n")
    before = sorted(tmp_path.rglob("*"))
    done = pipeline(*COMMANDS[command], "--input", write_problems(tmp_path, 2), "--engines", engines, "--output", folder)
    why = "not a directory" if place.startswith("a file") else "no such file or directory"
    assert done.stderr == f"error: {folder}: cannot be written: {why}\n"
    assert done.returncode == 2
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "problems.jsonl"])


def test_a_folder_that_was_made_to_see_is_taken_back(tmp_path: Path) -> None:
    """The run is refused for another reason: nothing of it is left."""
    done = pipeline(*COMMANDS["run"], "--input", tmp_path / "missing.csv", "--output", tmp_path / "new/deep/run")
    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_a_working_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    problems = write_problems(tmp_path, 2)
    with chdir(tmp_path / "gone"):
        (tmp_path / "gone").rmdir()
        done = command("run", ROOT / "graphs/speccot.yaml", "--engines", SIM, "--input", problems)
    assert (done.code, done.stderr) == (2, "error: the working folder: no such file or directory\n")
