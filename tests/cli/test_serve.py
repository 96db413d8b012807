"""`pipeline serve`: what keeps a server from starting is said in a sentence."""

import socket
from pathlib import Path

import pytest

from tests.support.commands import pipeline
from tests.support.runs import solve_short
from tests.support.serving import serving


def test_a_port_that_is_taken_and_a_host_that_is_not_ours_are_said(tmp_path: Path) -> None:
    serve = ("serve", "speccot", "--engines", "sim-instant", "-o", tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = pipeline(*serve, "--port", str(port))
    assert done.returncode == 2
    said = f"error: --port {port}: cannot listen on 127.0.0.1: address already in use; choose another one, or 0 for any free one\n"
    assert done.stderr.endswith(said)
    done = pipeline(*serve, "--host", "203.0.113.7", "--port", "0")
    assert done.stderr.endswith("error: --host 203.0.113.7: cannot listen on it: cannot assign requested address\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_server_and_a_run_over_a_file_continue_only_their_own_kind(tmp_path: Path) -> None:
    folder, inputs = solve_short(tmp_path).folder, ("--input", "arith")
    done = pipeline("serve", "speccot", "--engines", "sim-instant", "--port", "0", "-o", folder, "--resume")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {folder}: is a run over ")
    assert done.stderr.endswith(", not a server's; give the server another folder with --output\n")
    with serving(served := tmp_path / "served"):
        pass
    done = pipeline("run", "speccot", "--engines", "sim-instant", *inputs, "-o", served, "--resume")
    assert done.returncode == 2
    assert done.stderr == f"error: {served}: is the run of a server; continue with `pipeline serve speccot --output {served} --resume`\n"
    assert pipeline("resume", served).stderr == done.stderr
