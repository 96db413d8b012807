"""`pipeline serve`: what keeps a server from starting is said in a sentence."""

import socket
from pathlib import Path

from tests.support.commands import pipeline


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


def test_toys_answer_no_requests_unless_they_are_named(tmp_path: Path) -> None:
    done = pipeline("serve", "speccot", "-o", tmp_path / "run", "--port", "0")
    assert (done.returncode, done.stderr.count("--engines tiny")) == (2, 1)
