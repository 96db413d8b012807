"""Whole runs on servers over loopback that misbehave: nothing is lost, and a run that stops can be resumed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Lock

import pytest
from msgspec import structs

from pipeline.options import RunOptions
from pipeline.run.run import run
from tests.support import small_server
from tests.support.commands import running
from tests.support.paths import ROOT
from tests.support.patience import HANGS_S
from tests.support.runs import rows, servers_file, write_problems
from tests.support.served import TOKENIZER
from tests.support.small_server import VLLM, Handler, Reply, SmallServer, raw, status

WORDS = "the server's own words"


@pytest.fixture
def small() -> Iterator[SmallServer]:
    with small_server.small_server(VLLM, TOKENIZER) as server:
        yield server


def over(small: SmallServer, folder: Path) -> RunOptions:
    """A run over one server."""
    served = f"model: tiny, base_url: '{small.base_url}', tokenizer: 'bundled:tiny-target'"
    (folder / "engines.yaml").write_text(f"target: {{backend: openai, {served}, max_model_len: 512, max_retries: 1, reconnect_s: 3}}\n")
    target, problems = ROOT / "graphs/target.yaml", write_problems(folder, 20)
    return RunOptions(graph=target, engines=folder / "engines.yaml", input=(str(problems),), output=folder / "run", batch_size=4)


def after_five(fault: small_server.Fault) -> small_server.Fault:
    """Does this from the sixth call of a run on."""
    answered, lock = list[bool](), Lock()

    def late(handler: Handler, reply: Reply) -> None:
        with lock:
            answered.append(handler.body.get("max_tokens", 0) > 16)
            wrong = sum(answered) > 5
        (fault if wrong else Handler.send)(handler, reply)

    return late


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "says"),
    [(status(401, WORDS), WORDS), (status(400, WORDS), WORDS), (raw(b"<html><h1>Sign in</h1></html>"), "is not JSON: ")],
    ids=["key", "limit", "sign-in page"],
)
def test_what_ends_in_mid_run_ends_the_run_and_no_chain(small: SmallServer, tmp_path: Path, fault: small_server.Fault, says: str) -> None:
    """After `reconnect_s`; none is unfinished but the live ones, and the run goes on where it was."""
    small.always = after_five(fault)
    options = over(small, tmp_path)
    result = run(options)
    assert (result.exit_code, result.failed) == (1, 0), result.error
    assert says in str(result.error)
    small.always = None
    again = run(structs.replace(options, resume=True))
    assert (again.exit_code, again.done) == (0, 20)


@pytest.mark.slow
def test_a_run_that_is_suspended_for_longer_than_timeout_s_goes_on(tmp_path: Path, small: SmallServer) -> None:
    small.always = small_server.late(0.5)
    engines = servers_file(tmp_path, model="tiny", more=", timeout_s: 3, max_retries: 0", draft=small.base_url, target=small.base_url)
    limits = ["--engines", str(engines), "--limit", "4", "--set", "max_steps=1"]
    with running(tmp_path / "out", *limits) as process:
        small.wait_for(lambda seen: small.bodies[-1]["max_tokens"] > 1)
        os.kill(process.pid, signal.SIGSTOP)
        Event().wait(4.0)
        os.kill(process.pid, signal.SIGCONT)
        _, error = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, error
    errors = {row["error_type"] for row in rows(tmp_path / "out", "calls")}
    assert errors <= {None, "EngineUnavailable"}  # a connection may have been closed
