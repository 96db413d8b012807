"""Whole runs on replicas one of which is bad, or all of them are: nothing is lost, and a run that cannot go on can be resumed."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.engines.tokenizer import HFTokenizer
from pipeline.session.execute import SessionResult
from pipeline.session.options import RunOptions, resume_options
from pipeline.session.run import run
from tests.support.paths import ROOT, TEST_SET
from tests.support.runs import chains_of
from tests.support.small_server import (
    VLLM,
    Fault,
    Handler,
    Reply,
    Sick,
    SmallServer,
    cut,
    hang,
    late,
    raw,
    refuse_connections,
    small_server,
    status,
)

CHAINS = 6
WAYS: dict[str, Fault] = {
    **{str(code): status(code) for code in (400, 401, 403, 404, 429, 500, 503)},
    "HTML": raw(b"<html>Bad gateway</html>"),
    "cut": cut,
    "hangs": hang,
    "refuses connections": refuse_connections,
    "slow": late(1.0),
}
TOKENIZER = HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))


@contextmanager
def replicas(count: int) -> Iterator[list[SmallServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(small_server(VLLM, TOKENIZER)) for _ in range(count)]


def solve(folder: Path, servers: list[SmallServer], more: str = "", **options: Any) -> SessionResult:
    engines = folder / "engines.yaml"
    urls = ", ".join(server.base_url for server in servers)
    engines.write_text(
        f"draft: &one {{backend: openai, model: tiny, base_url: [{urls}], tokenizer: 'bundled:tiny-target'{more}}}\ntarget: *one\n"
    )
    chosen = {"graph": ROOT / "graphs/speccot.yaml", "input": TEST_SET, "limit": CHAINS, "engines": engines, "output": folder / "run"}
    chosen["settings"] = ("max_steps=30",)
    return run(RunOptions(**chosen | options))


def texts(folder: Path) -> list[tuple[str, str]]:
    return sorted((row["chain_id"], row["answer_text"]) for row in chains_of(folder))


def errors_of(folder: Path) -> set[str]:
    return set(pq.read_table(folder / "calls")["error_type"].to_pylist()) - {None}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """What comes of the chains where nothing goes wrong."""
    folder = tmp_path_factory.mktemp("calm")
    with replicas(1) as servers:
        assert solve(folder, servers).exit_code == 0
    return texts(folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize(("way", "count"), [*((way, 2) for way in WAYS), ("hangs", 4)])
def test_one_bad_replica_fails_no_chain_and_changes_no_answer(tmp_path: Path, calm: list[tuple[str, str]], way: str, count: int) -> None:
    with replicas(count) as servers:
        sick = servers[-1].always = Sick(WAYS[way])
        result = solve(tmp_path, servers, ", max_retries: 0")
        assert sick.calls
    assert (result.exit_code, result.failed) == (0, 0)
    assert texts(tmp_path / "run") == calm
    assert errors_of(tmp_path / "run") <= {"EngineUnavailable"}


class Expiring:
    """Refuses every request after the first few of a run, as a server does whose key is no longer valid."""

    def __init__(self, well: int) -> None:
        self.left = well

    def __call__(self, handler: Handler, reply: Reply) -> None:
        self.left -= handler.body.get("max_tokens", 0) > 1
        (status(401, "the key has expired") if self.left < 0 else Handler.send)(handler, reply)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2], ids=["one server", "two"])
def test_a_key_that_expires_stops_the_run_and_burns_no_chain(tmp_path: Path, calm: list[tuple[str, str]], count: int) -> None:
    with replicas(count) as servers:
        for server in servers:
            server.always = Expiring(well=7)
        result = solve(tmp_path, servers, ", max_retries: 0, reconnect_s: 2")
        assert (result.exit_code, result.failed) == (1, 0)
        assert str(result.error).count("\n") == 0
        assert "answered 401: the key has expired; the key is not accepted" in str(result.error)
        assert {row["stop_reason"] for row in chains_of(tmp_path / "run")} <= {"cancelled", "thought_closed"}
        for server in servers:
            server.always = None
        again = run(resume_options(tmp_path / "run"))
    assert (again.exit_code, again.done) == (0, CHAINS)
    assert texts(tmp_path / "run") == calm


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (status(503), "none of its servers has answered for reconnect_s=2"),
        (raw(b"<html>"), "none of its servers has sent a valid answer for 2 s"),
        (hang, "none of its servers has answered for reconnect_s=2"),
    ],
    ids=["503", "HTML", "hangs"],
)
def test_a_run_whose_only_server_stays_bad_stops_after_its_retries(
    tmp_path: Path, calm: list[tuple[str, str]], fault: Fault, says: str
) -> None:
    with replicas(1) as [server]:
        server.always = Sick(fault)
        result = solve(tmp_path, [server], ", max_retries: 1, reconnect_s: 2, timeout_s: 1")
        assert (result.exit_code, result.failed) == (1, 0)
        assert says in str(result.error)
        server.always = None
        again = run(resume_options(tmp_path / "run"))
    assert (again.exit_code, again.done) == (0, CHAINS)
    assert texts(tmp_path / "run") == calm


class Spurning:
    """Does this to every request about one problem, and answers all others."""

    def __init__(self, fault: Fault) -> None:
        self.fault, self.problem = fault, ""

    def __call__(self, handler: Handler, reply: Reply) -> None:
        prompt = handler.body.get("prompt")
        if prompt and handler.body["max_tokens"] > 1:
            text = TOKENIZER.decode(prompt)
            self.problem = self.problem or text[:60]
            if text.startswith(self.problem):
                self.fault(handler, reply)
                return
        handler.send(reply)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "error", "count"),
    [(503, "EngineUnavailable", 1), (503, "EngineUnavailable", 2), (400, "RequestRefused", 1), (403, "EngineUnavailable", 2)],
)
def test_a_request_that_no_server_takes_fails_its_own_chain_only(tmp_path: Path, code: int, error: str, count: int) -> None:
    with replicas(count) as servers:
        first = Spurning(status(code))
        for server in servers:
            server.always = first
        result = solve(tmp_path, servers, ", max_retries: 1")
    assert (result.exit_code, result.failed, result.done) == (3, 1, CHAINS - 1)
    assert {row["error_type"] for row in chains_of(tmp_path / "run")} == {None, error}


@pytest.mark.slow
def test_a_server_that_is_away_longer_than_the_retries_costs_no_chain(tmp_path: Path, calm: list[tuple[str, str]]) -> None:
    """503 for two seconds, though a call may be sent again only once: it is asked whether it answers anybody, and waited for."""

    class Away:
        until = math.inf

        def __call__(self, handler: Handler, reply: Reply) -> None:
            if self.until == math.inf and handler.body.get("max_tokens", 0) > 1:
                self.until = monotonic() + 2.0
            (status(503) if self.until - 2.0 < monotonic() < self.until else Handler.send)(handler, reply)

    with replicas(1) as [server]:
        server.always = Away()
        result = solve(tmp_path, [server], ", max_retries: 1")
    assert (result.exit_code, result.done) == (0, CHAINS)
    assert texts(tmp_path / "run") == calm
