"""`pipeline view`: where pages are served or written, and one sentence where there are none."""

import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.support.commands import COMMAND, pipeline
from tests.support.paths import ROOT
from tests.support.runs import solve_short


def test_what_cannot_be_shown_is_said(tmp_path: Path) -> None:
    assert f"{tmp_path}: contains no runs; name the folder" in pipeline("view", tmp_path).stderr
    assert "nothing: no such directory; name the one" in pipeline("view", tmp_path / "nothing").stderr
    folder = solve_short(tmp_path).folder
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = pipeline("view", folder, "--port", str(port))
    assert done.returncode == 2
    assert (
        done.stderr
        == f"error: --port {port}: cannot listen on 127.0.0.1: address already in use; choose another one, or 0 for any free one\n"
    )


@pytest.mark.slow
def test_pages_are_served_until_an_interrupt(tmp_path: Path) -> None:
    solve_short(tmp_path)
    process = subprocess.Popen(
        [*COMMAND, "view", tmp_path, "--port", "0"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split(" at ")[1].split()[0]
        with urllib.request.urlopen(url) as answer:
            assert "speccot" in answer.read().decode()
    finally:
        process.send_signal(2)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == ""


@pytest.mark.slow
def test_pages_are_written_to_a_file(tmp_path: Path) -> None:
    one, two = (solve_short(tmp_path, name).folder for name in ("one", "two"))
    done = pipeline("view", "one", "-o", "one.html", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("page: one.html (")
    assert "<title>Run one</title>" in (tmp_path / "one.html").read_text()
    assert pipeline("view", one, two, "-o", "both.html", cwd=tmp_path).returncode == 0
    assert "<h2>Comparison</h2>" in (tmp_path / "both.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere", "-o", "x.html"], "nowhere: no such directory; expected a run folder"),
        ([".", ".", "-o", "no/x.html"], "no/x.html: not writable; choose another file with --output"),
        ([".", "-o", "notes"], "notes: file exists; choose another file with --output, or add --overwrite"),
        ([".", "."], "several runs are compared in a file: add -o FILE, or name one folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_one_sentence_and_exit_code_2(tmp_path: Path, arguments: list[str], says: str) -> None:
    (tmp_path / "notes").write_text("mine")
    done = pipeline("view", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("package", ["latex2mathml", "uvicorn"])
def test_without_the_extra_it_says_how_to_get_it(tmp_path: Path, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from pipeline.cli.main import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    asked = [sys.executable, "-c", code, "view", str(tmp_path)]
    done = subprocess.run(asked, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    remedy = 'pip install "speculative-pipeline[view]"'
    assert done.stderr == f"error: view needs the package `{package}`, which is not installed: {remedy}\n"
