"""An error that nobody foresaw is one sentence, and its traceback is kept."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

FAIL = "import pipeline.graph.files as b\ndef fail(*kinds):\n    raise {}\nb.bundled_files = fail\n"
START = "from pipeline.cli.main import main; main()"


def failing(error: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`pipeline list engines` where an error is raised in the middle of it."""
    words = [sys.executable, "-c", FAIL.format(error) + START, "list", "engines"]
    variables = os.environ | variables | {"TMPDIR": str(folder)}
    return subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_the_traceback_is_in_a_file_that_the_sentence_names(tmp_path: Path) -> None:
    done = failing("KeyError('no such thing')", tmp_path)
    (kept,) = tmp_path.iterdir()
    said = f"this is a bug in pipeline: please report it with {kept} (or the traceback that PIPELINE_DEBUG=1 shows)"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"error: unexpected KeyError: 'no such thing'; {said}\n")
    assert "in fail\nKeyError: 'no such thing'\n" in kept.read_text()


@pytest.mark.slow
def test_debug_shows_it(tmp_path: Path) -> None:
    done = failing("KeyError('x')", tmp_path, PIPELINE_DEBUG="1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_want_of_memory_is_no_defect(tmp_path: Path) -> None:
    done = failing("ExceptionGroup('g', [MemoryError()])", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: out of memory; ")
    assert list(tmp_path.iterdir()) == []
