"""`pipeline view`: it says where the pages are, and in a sentence why there are none."""

import socket
import subprocess
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
