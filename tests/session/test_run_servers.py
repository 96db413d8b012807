"""Whole runs on servers over loopback: vLLM's own, one of them killed and started again, and small ones that misbehave."""

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.analysis.summary import Summary, summarize
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.session.options import RunOptions
from pipeline.session.run import SessionResult, run
from tests.support import small_server
from tests.support.commands import running
from tests.support.paths import ROOT, TEST_SET
from tests.support.runs import chains_of
from tests.support.servers import Running, vllm_server

MODELS = ROOT / "pipeline/models"
on_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed here")


def engines_file(folder: Path, *, model: str = "", more: str = "", **urls: str) -> Path:
    """An engines file in which each role is a server."""
    path = folder / "engines.yaml"
    roles = [
        f"{role}: {{backend: openai, model: {model or role}, base_url: {url}, tokenizer: 'bundled:tiny-{role}'{more}}}\n"
        for role, url in urls.items()
    ]
    path.write_text("".join(roles))
    return path


def solve(folder: Path, engines: Path, **options: Any) -> SessionResult:
    chosen = {"graph": ROOT / "graphs/speccot.yaml", "input": TEST_SET, "limit": 100, "engines": engines, "output": folder}
    return run(RunOptions(**chosen | options))


def calls_of(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "calls").to_pylist()
    return rows


def half_served(folder: Path, server: Running) -> Path:
    """An engines file with the draft on vLLM's server and the target on torch, which starts sooner than a second server."""
    path = engines_file(folder, draft=server.base_url)
    path.write_text(f"{path.read_text()}target: {{backend: torch, model: 'bundled:tiny-target', core: 1}}\n")
    return path


@pytest.fixture(scope="module")
def greedy(served_draft: Running, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 problems without any randomness."""
    folder = tmp_path_factory.mktemp("servers")
    result = solve(folder / "servers", half_served(folder, served_draft), settings=("temperature=0",))
    assert result.exit_code == 0
    return result.folder


@on_vllm
@pytest.mark.vllm
def test_greedy_answers_are_those_of_the_torch_engine(greedy: Path, greedy_run: Path) -> None:
    torch, served = ({row["problem_id"]: row["answer"] for row in chains_of(folder)} for folder in (greedy_run, greedy))
    assert len(torch) == 100
    assert sum(served[key] == torch[key] for key in torch) >= 95


@on_vllm
@pytest.mark.vllm
def test_hits_of_the_servers_prefix_cache_are_in_the_run(greedy: Path) -> None:
    found: Summary = summarize(greedy)
    assert 0 < found.engines["draft"].cached_input_tokens < found.engines["draft"].input_tokens


@on_vllm
@pytest.mark.vllm
def test_a_server_that_is_killed_and_started_again_costs_its_calls_one_attempt(served_draft: Running, tmp_path: Path) -> None:
    """The last to use that server."""
    port = int(served_draft.base_url.rpartition(":")[2].partition("/")[0])
    engines = half_served(tmp_path, served_draft)
    with running(tmp_path / "out", "--engines", str(engines), "--limit", "120", chains=120) as process:
        os.killpg(served_draft.process.pid, signal.SIGKILL)
        served_draft.process.wait()
        with vllm_server(MODELS / "tiny-draft", "draft", port=port):
            _, error = process.communicate(timeout=400)
    assert process.returncode == 0, error
    chains = chains_of(tmp_path / "out")
    assert len({row["chain_id"] for row in chains}) == len(chains) == 120
    assert {row["error_type"] for row in chains} == {None}
    broken = [row for row in calls_of(tmp_path / "out") if row["error_type"]]
    assert {(row["engine"], row["error_type"], row["attempt"]) for row in broken} == {("draft", "EngineUnavailable", 0)}
    assert sum(row["attempt"] > 0 for row in calls_of(tmp_path / "out")) == len(broken)


@pytest.fixture
def small() -> Iterator[small_server.SmallServer]:
    with small_server.small_server(small_server.VLLM, HFTokenizer(str(MODELS / "tiny-target"))) as server:
        yield server


def both(server: small_server.SmallServer) -> dict[str, str]:
    return {"draft": server.base_url, "target": server.base_url}


class Moody:
    """Turns every fifth request away: too busy, or broken inside."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, handler: small_server.Handler, reply: small_server.Reply) -> None:
        self.count += 1
        if self.count % 5:
            handler.send(reply)
        else:
            small_server.status((429, 500)[self.count % 2])(handler, reply)


@pytest.mark.slow
def test_a_server_that_is_busy_or_broken_now_and_then_loses_nothing(tmp_path: Path, small: small_server.SmallServer) -> None:
    calm = solve(tmp_path / "calm", engines_file(tmp_path, model="tiny", **both(small)), limit=4)
    small.always = Moody()
    result = solve(tmp_path / "moody", engines_file(tmp_path, model="tiny", **both(small)), limit=4)
    assert (calm.exit_code, result.exit_code) == (0, 0)
    rows = calls_of(tmp_path / "moody")
    assert {row["error_message"].partition("answered ")[2][:3] for row in rows if row["error_type"]} == {"429", "500"}
    assert {row["attempt"] for row in rows} >= {0, 1}
    assert summarize(tmp_path / "moody").engines["target"].retried_calls > 0
    texts = [sorted((row["chain_id"], row["answer_text"]) for row in chains_of(tmp_path / name)) for name in ("calm", "moody")]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_server_that_never_answers_meets_timeout_s(tmp_path: Path, small: small_server.SmallServer) -> None:
    engines = engines_file(tmp_path, model="tiny", more=", timeout_s: 0.2, max_retries: 1", **both(small))

    def hang_at_drafts(handler: small_server.Handler, reply: small_server.Reply) -> None:
        small_server.hang(handler, reply) if small.seen[-1].body.get("n") == 5 else handler.send(reply)

    small.always = hang_at_drafts
    result = solve(tmp_path / "out", engines, limit=1, settings=("max_steps=2",))
    assert result.exit_code == 3
    assert {(row["error_type"], row["error_stage"]) for row in chains_of(tmp_path / "out")} == {("CallTimeout", "draft")}
    timed_out = [row for row in calls_of(tmp_path / "out") if row["error_type"] == "CallTimeout"]
    # On a starved machine the server may not even answer the small request that tells whether it hangs: then there is one attempt more.
    assert sorted(row["attempt"] for row in timed_out)[:2] == [0, 1]
    assert all("timeout_s=0.2" in row["error_message"] for row in timed_out)


@pytest.mark.slow
def test_a_run_that_is_suspended_for_longer_than_timeout_s_goes_on(tmp_path: Path, small: small_server.SmallServer) -> None:
    small.always = small_server.late(1.0)
    engines = engines_file(tmp_path, model="tiny", more=", timeout_s: 2, max_retries: 0", **both(small))
    limits = ["--engines", str(engines), "--limit", "4", "--set", "max_steps=1"]
    with running(tmp_path / "out", *limits, chains=4) as process:
        small.wait_for(lambda seen: small.bodies[-1]["max_tokens"] > 1)
        os.kill(process.pid, signal.SIGSTOP)
        Event().wait(3.0)
        os.kill(process.pid, signal.SIGCONT)
        _, error = process.communicate(timeout=100)
    assert process.returncode == 0, error
    assert {row["error_type"] for row in calls_of(tmp_path / "out")} <= {None, "EngineUnavailable"}  # a connection may have been closed
