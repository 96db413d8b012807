"""A server as its clients see it, through the `openai` package, and the run that it leaves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from pipeline.serve.desk import ServeLimits
from tests.support.runs import rows
from tests.support.serving import SHORT, Serving, serving

pytestmark = pytest.mark.slow  # connections, and a run on real time

ASKED: dict[str, Any] = {"model": "speccot", "messages": [{"role": "user", "content": "What is 2 + 3?"}]}
LONG = "engines.*.text.steps_mean=200"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("server") / "run", limits=ServeLimits(max_queue=2)) as found:
        yield found


def test_a_stream_gives_each_step_and_then_the_same_answer_as_the_whole_reply(server: Serving) -> None:
    client = server.client()
    whole = client.chat.completions.create(**ASKED, seed=7)
    pieces = [*client.chat.completions.create(**ASKED, seed=7, stream=True, stream_options={"include_usage": True})]
    message: Any = whole.choices[0].message
    deltas: list[Any] = [choice.delta for piece in pieces for choice in piece.choices]
    steps = [delta.reasoning_content for delta in deltas if getattr(delta, "reasoning_content", None)]
    assert len(steps) > 1
    assert "</think>" not in "".join(steps)
    assert "".join(steps) == message.reasoning_content
    assert "boxed" in "".join(delta.content or "" for delta in deltas) == message.content
    assert pieces[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert pieces[-1].usage == whole.usage
    usage: Any = whole.usage
    assert usage.total_tokens == sum(role["total_tokens"] for role in usage.by_role.values()) > 0


def test_choices_are_chains_of_one_problem_and_as_many_as_may_wait(server: Serving) -> None:
    client = server.client()
    whole = client.chat.completions.create(**ASKED, n=2)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert len({choice.message.content for choice in whole.choices}) == 2
    pieces = client.chat.completions.create(**ASKED, n=2, stream=True)
    assert sorted(choice.index for piece in pieces for choice in piece.choices if choice.finish_reason) == [0, 1]
    with pytest.raises(openai.RateLimitError, match="requests wait already") as refused:
        client.chat.completions.create(**ASKED, n=3, stream=True)
    assert int(refused.value.response.headers["retry-after"]) >= 1


def test_what_cannot_be_done_is_refused_in_the_form_of_the_api(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    for more, code in (({"model": "gpt-6"}, "model_not_found"), ({"logprobs": True}, "unsupported_parameter")):
        with pytest.raises(openai.APIStatusError) as refused:
            server.client().chat.completions.create(**ASKED | more)
        error: Any = refused.value
        assert (error.param, error.code, error.status_code) == (*more, code, 404 if "model" in more else 400)
    chat, port = f"{server.url}/chat/completions", server.url.removesuffix("/v1").rpartition(":")[2]
    monkeypatch.setattr("pipeline.serve.completions.BODY_BYTES", 1000)
    for url, headers, status, code in (
        (f"{server.url}/embeddings", {}, 404, "unknown_url"),
        (chat, {"Host": f"evil.example:{port}"}, 403, "wrong_host"),
        (chat, {"Sec-Fetch-Site": "cross-site"}, 403, "cross_site"),  # a web page of another site
        (chat, {"Origin": "http://evil.example"}, 403, "cross_site"),
        (chat, {}, 413, "request_too_large"),
    ):
        refusal = httpx2.post(url, content=b" " * 1001, headers=headers)
        assert (refusal.status_code, refusal.json()["error"]["code"]) == (status, code)
    assert httpx2.get(chat).status_code == 405
    assert httpx2.get(f"{server.url}/models", headers={"Host": f"localhost:{port}"}).status_code == 200


def test_models_health_and_metrics_say_what_is_served_below_v1_only_with_the_key(tmp_path: Path) -> None:
    with serving(tmp_path / "run", key="secret") as server:
        root = server.url.removesuffix("/v1")
        with pytest.raises(openai.AuthenticationError, match="wrong API key"):
            server.client("guess").models.list()
        assert [model.id for model in server.client("secret").models.list()] == ["speccot"]
        named = {"Host": "gpu.example", "Authorization": "Bearer secret"}
        assert httpx2.get(f"{server.url}/models", headers=named).status_code == 200
        assert httpx2.get(f"{root}/health").json() == {"status": "serving"}
        said = httpx2.get(f"{root}/metrics").text
    assert "pipeline:requests_waiting 0.0" in said
    assert 'pipeline:num_requests_running{engine="draft"' in said


def test_clients_that_leave_or_have_waited_too_long_end_their_chains(tmp_path: Path) -> None:
    with serving(tmp_path / "run", LONG, engines="sim-2xh100", batch_size=1, limits=ServeLimits(timeout_s=2.0)) as server:
        client = server.client()
        with client.chat.completions.create(**ASKED, stream=True) as pieces:
            next(iter(pieces))
        client.chat.completions.create(**ASKED, max_tokens=1)  # begins when the other has ended
        with pytest.raises(openai.InternalServerError, match=r"no answer within 2 s") as late:
            client.chat.completions.create(**ASKED)
        assert late.value.status_code == 504
    chains = sorted(rows(tmp_path / "run", "chains"), key=lambda row: row["input_row"])
    assert [row["stop_reason"] for row in chains] == ["error", "max_tokens", "error"]
    assert [row["error_message"] for row in chains] == ["the client closed the connection", None, "there was no answer within 2 s"]
    assert {chains[0]["error_type"], chains[2]["error_type"]} == {"Withdrawn"}
    assert server.result is not None
    assert (server.result.run.status, server.result.run.input.rows) == ("finished", 3)


def test_an_engine_that_is_lost_ends_the_server_and_tells_its_clients(tmp_path: Path, faulty: Path) -> None:
    settings = (SHORT, "engines.target.faults.dies_after_calls=3", "engines.target.max_restarts=0")
    with (
        serving(tmp_path / "run", *settings, engines=str(faulty)) as server,
        pytest.raises(openai.InternalServerError, match="stopped before the answer"),
    ):
        server.client().chat.completions.create(**ASKED)
    assert server.result is not None
    assert (server.result.exit_code, server.result.run.status) == (1, "failed")
