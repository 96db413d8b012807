"""Whole runs on small servers over loopback that misbehave."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from pipeline.analysis.summary import summarize
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError
from tests.support import small_server
from tests.support.commands import running
from tests.support.paths import MODELS
from tests.support.patience import HANGS_S
from tests.support.runs import calls_of, chains_of, servers_file, solve_with


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
    calm = solve_with(servers_file(tmp_path, model="tiny", **both(small)), tmp_path / "calm", limit=2, settings=("max_steps=30",))
    small.always = Moody()
    result = solve_with(servers_file(tmp_path, model="tiny", **both(small)), tmp_path / "moody", limit=2, settings=("max_steps=30",))
    assert (calm.exit_code, result.exit_code) == (0, 0)
    rows = calls_of(tmp_path / "moody")
    assert {row["error_message"].partition("answered ")[2][:3] for row in rows if row["error_type"]} == {"429", "500"}
    assert {row["attempt"] for row in rows} >= {0, 1}
    assert summarize(tmp_path / "moody").engines["target"].retried_calls > 0
    texts = [sorted((row["chain_id"], row["answer_text"]) for row in chains_of(tmp_path / name)) for name in ("calm", "moody")]
    assert texts[0] == texts[1]


def test_a_server_that_does_not_know_a_way_of_sampling_is_refused_before_a_chain_starts(tmp_path: Path) -> None:
    with small_server.small_server(small_server.HOSTED, HFTokenizer(str(MODELS / "tiny-target"))) as hosted:
        engines = servers_file(tmp_path, model="tiny", more=", max_model_len: 512", **both(hosted))
        what = "engine '%s': does not support `top_k`, which stage `%s` sets to 20; leave that out or use another engine"
        with pytest.raises(GraphError) as caught:
            solve_with(engines, tmp_path / "run", limit=2, settings=("top_k=20",))
        assert str(caught.value).splitlines() == [what % about for about in (("target", "guidance"), ("draft", "draft"))]


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["timeout_s", "hang_s"])
def test_a_server_that_never_answers_meets_its_limit(tmp_path: Path, small: small_server.SmallServer, limit: str) -> None:
    engines = servers_file(tmp_path, model="tiny", more=f", {limit}: 2, max_retries: 1", **both(small))

    def hang_at_drafts(handler: small_server.Handler, reply: small_server.Reply) -> None:
        small_server.hang(handler, reply) if small.seen[-1].body.get("n") == 5 else handler.send(reply)

    small.always = hang_at_drafts
    result = solve_with(engines, tmp_path / "out", limit=1, settings=("max_steps=2",))
    assert result.exit_code == 3
    assert {(row["error_type"], row["error_stage"]) for row in chains_of(tmp_path / "out")} == {("CallTimeout", "draft")}
    timed_out = [row for row in calls_of(tmp_path / "out") if row["error_type"] == "CallTimeout"]
    # On a starved machine the server may not even answer the small request that tells whether it hangs: then there is one attempt more.
    assert sorted(row["attempt"] for row in timed_out)[:2] == [0, 1]
    assert all(f"{limit}=2" in row["error_message"] for row in timed_out)


@pytest.mark.slow
def test_a_run_that_is_suspended_for_longer_than_timeout_s_goes_on(tmp_path: Path, small: small_server.SmallServer) -> None:
    small.always = small_server.late(0.5)
    engines = servers_file(tmp_path, model="tiny", more=", timeout_s: 3, max_retries: 0", **both(small))
    limits = ["--engines", str(engines), "--limit", "4", "--set", "max_steps=1"]
    with running(tmp_path / "out", *limits, chains=4) as process:
        small.wait_for(lambda seen: small.bodies[-1]["max_tokens"] > 1)
        os.kill(process.pid, signal.SIGSTOP)
        Event().wait(4.0)
        os.kill(process.pid, signal.SIGCONT)
        _, error = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, error
    assert {row["error_type"] for row in calls_of(tmp_path / "out")} <= {None, "EngineUnavailable"}  # a connection may have been closed
