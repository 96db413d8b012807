"""A server as its clients see it, through the `openai` package, and the run that it leaves."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from pipeline.serve.desk import ServeLimits
from tests.support.patience import HANGS_S
from tests.support.runs import rows
from tests.support.serving import SHORT, Serving, serving

pytestmark = pytest.mark.slow  # connections, and a run on real time

ASKED: list[Any] = [{"role": "user", "content": "What is 2 + 3?"}]
LONG = "engines.*.text.steps_mean=200"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("server") / "run", limits=ServeLimits(max_queue=2, max_body_bytes=10_000)) as found:
        yield found


def test_a_stream_gives_each_step_and_then_the_same_answer_as_the_whole_reply(server: Serving) -> None:
    client, asked = server.client(), {"model": "speccot", "messages": ASKED, "seed": 7}
    whole = client.chat.completions.create(**asked)
    pieces = [*client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})]
    message: Any = whole.choices[0].message
    deltas: list[Any] = [choice.delta for piece in pieces for choice in piece.choices]
    steps = [delta.reasoning_content for delta in deltas if getattr(delta, "reasoning_content", None)]
    assert len(steps) > 1
    assert "</think>" not in "".join(steps)
    assert "".join(steps) == message.reasoning_content
    assert "".join(delta.content or "" for delta in deltas) == message.content
    assert "boxed" in message.content
    assert pieces[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert pieces[-1].usage == whole.usage
    usage: Any = whole.usage
    assert usage.total_tokens == sum(role["total_tokens"] for role in usage.by_role.values()) > 0


def test_choices_are_chains_of_one_problem(server: Serving) -> None:
    client = server.client()
    whole = client.chat.completions.create(model="speccot", messages=ASKED, n=2)
    assert [choice.index for choice in whole.choices] == [0, 1]
    assert len({choice.message.content for choice in whole.choices}) == 2
    pieces = client.chat.completions.create(model="speccot", messages=ASKED, n=2, stream=True)
    ends = [choice.index for piece in pieces for choice in piece.choices if choice.finish_reason]
    assert sorted(ends) == [0, 1]


def test_more_than_may_wait_is_refused_with_when_to_come_again(server: Serving) -> None:
    with pytest.raises(openai.RateLimitError, match="requests wait already") as refused:
        server.client().chat.completions.create(model="speccot", messages=ASKED, n=3)
    assert int(refused.value.response.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"model": "gpt-6"}, "model", "model_not_found"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "unsupported_parameter"),
        ({"logprobs": True}, "logprobs", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"messages": [{"role": "user", "content": "x" * 10_000}]}, None, "request_too_large"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "invalid_value",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_the_form_of_the_api(server: Serving, more: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        server.client().chat.completions.create(**{"model": "speccot", "messages": ASKED, **more})
    error: Any = refused.value
    assert error.param == param
    assert error.code == code
    assert error.status_code == {"model_not_found": 404, "request_too_large": 413}.get(code, 400)


def test_urls_that_are_none_are_told_in_the_form_of_the_api(server: Serving) -> None:
    missing = httpx2.post(f"{server.url}/embeddings", json={})
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_url")
    assert httpx2.get(f"{server.url}/chat/completions").json()["error"]["code"] == "method_not_supported"
    assert httpx2.post(f"{server.url}/chat/completions", content=b"{").json()["error"]["code"] == "invalid_json"


def test_a_web_page_of_another_site_cannot_ask(server: Serving) -> None:
    port = server.url.removesuffix("/v1").rpartition(":")[2]
    for headers in (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": f"evil.example:{port}"},
        {"Host": f"0.0.0.0:{port}"},
    ):
        refused = httpx2.post(f"{server.url}/chat/completions", json={}, headers=headers)
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == ("wrong_host" if "Host" in headers else "cross_site")
    for headers in ({"Host": f"localhost:{port}"}, {"Host": f"[::1]:{port}"}, {"Origin": server.url.removesuffix("/v1")}):
        assert httpx2.get(f"{server.url}/models", headers=headers).status_code == 200


def test_a_body_that_does_not_come_is_refused(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.serve.completions.BODY_S", 0.2)
    port = int(server.url.removesuffix("/v1").rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), HANGS_S) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{")
        assert b"408 Request Timeout" in client.recv(1000)


def test_models_health_and_metrics_say_what_is_served(server: Serving) -> None:
    client, root = server.client(), server.url.removesuffix("/v1")
    assert [model.id for model in client.models.list()] == ["speccot"]
    assert client.models.retrieve("speccot").owned_by == "pipeline"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    assert httpx2.get(f"{root}/health").json() == {"status": "serving"}
    said = httpx2.get(f"{root}/metrics").text
    assert "pipeline:requests_waiting 0.0" in said
    assert 'pipeline:num_requests_running{engine="draft"' in said


def test_a_key_of_the_environment_is_asked_for(tmp_path: Path) -> None:
    with serving(tmp_path / "run", key="secret") as server:
        with pytest.raises(openai.AuthenticationError, match="wrong API key"):
            server.client("guess").models.list()
        assert [model.id for model in server.client("secret").models.list()] == ["speccot"]
        named = {"Host": "gpu.example", "Authorization": "Bearer secret"}
        assert httpx2.get(f"{server.url}/models", headers=named).status_code == 200
        assert httpx2.get(f"{server.url.removesuffix('/v1')}/health").status_code == 200


def test_a_client_that_leaves_ends_its_chain_and_lets_the_next_begin(tmp_path: Path) -> None:
    with serving(tmp_path / "run", LONG, engines="sim-2xh100", batch_size=1) as server:
        client = server.client()
        with client.chat.completions.create(model="speccot", messages=ASKED, stream=True) as pieces:
            next(iter(pieces))
        client.chat.completions.create(model="speccot", messages=ASKED, max_tokens=1)  # begins when the other has ended
    left, short = sorted(rows(tmp_path / "run", "chains"), key=lambda row: row["input_row"])
    assert (left["stop_reason"], left["error_type"], left["error_message"]) == ("error", "Withdrawn", "the client closed the connection")
    assert short["stop_reason"] == "max_tokens"
    assert server.result is not None
    assert (server.result.run.status, server.result.run.input.rows) == ("finished", 2)


def test_a_request_that_takes_too_long_ends_as_an_error(tmp_path: Path) -> None:
    with serving(tmp_path / "run", LONG, engines="sim-2xh100", limits=ServeLimits(timeout_s=0.2)) as server:
        with pytest.raises(openai.InternalServerError, match=r"no answer within 0\.2 s") as late:
            server.client().chat.completions.create(model="speccot", messages=ASKED)
        assert late.value.status_code == 504
    [row] = rows(tmp_path / "run", "chains")
    assert row["error_message"] == "there was no answer within 0.2 s"


def test_an_engine_that_is_lost_ends_the_server_and_tells_its_clients(tmp_path: Path, faulty: Path) -> None:
    settings = (SHORT, "engines.target.faults.dies_after_calls=3", "engines.target.max_restarts=0")
    with (
        serving(tmp_path / "run", *settings, engines=str(faulty)) as server,
        pytest.raises(openai.InternalServerError, match="stopped before the answer"),
    ):
        server.client().chat.completions.create(model="speccot", messages=ASKED)
    assert server.result is not None
    assert (server.result.exit_code, server.result.run.status) == (1, "failed")
