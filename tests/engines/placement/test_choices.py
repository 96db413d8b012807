"""What `--model ROLE=VALUE` may say, and what a server or the hub is asked about it."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from pipeline.engines.hub import check_model
from pipeline.engines.placement.choices import Served, Weights, card_of, pairs, read_choices, served_fields
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import PipelineError, UsageError
from tests.support.paths import MODELS
from tests.support.small_server import VLLM, SmallServer, small_server

TOKENIZER = HFTokenizer(str(MODELS / "tiny-target"))


def test_a_role_is_played_by_a_hub_name_a_bundled_model_or_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    found = read_choices(pairs(["target=Qwen/QwQ-32B", "draft=bundled:tiny-draft", "other=mine"]))
    assert found == {
        "target": Weights("Qwen/QwQ-32B"),
        "draft": Weights("bundled:tiny-draft"),
        "other": Weights(str(tmp_path / "mine")),
    }


@pytest.mark.parametrize(
    ("value", "served"),
    [
        ("http://127.0.0.1:8000/v1", Served("http://127.0.0.1:8000/v1")),
        ("http://127.0.0.1:8000/v1/#Qwen/QwQ-32B", Served("http://127.0.0.1:8000/v1", "Qwen/QwQ-32B")),
        ("https://models.example/v1#large", Served("https://models.example/v1", "large")),
    ],
)
def test_a_role_is_played_by_a_server(value: str, served: Served) -> None:
    assert read_choices({"target": value}) == {"target": served}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["Qwen/QwQ-32B"], "--model Qwen/QwQ-32B: expected ROLE=VALUE, such as target=Qwen/QwQ-32B"),
        (["target="], "expected ROLE=VALUE"),
        (["target=http://localhost:8000"], "must include the path, up to /v1: target=http://localhost:8000/v1"),
        (["target=./nowhere"], "there is no such folder; expected a Hugging Face name, a folder"),
        (["target=s3://bucket/model"], "is not a valid model"),
    ],
)
def test_any_other_value_is_refused(values: list[str], said: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_choices(pairs(values))
    assert said in str(raised.value)


# Servers.


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallServer]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with small_server(replace(VLLM, card={"max_model_len": 512, "root": "Qwen/QwQ-32B"}), TOKENIZER) as found:
        yield found


def test_the_one_model_of_a_server_is_taken_with_the_tokenizer_that_it_names(server: SmallServer) -> None:
    server.adapters = {"selection": "tiny"}
    fields = served_fields("target", Served(server.base_url), {})
    assert fields == {"backend": "openai", "model": "tiny", "base_url": server.base_url, "tokenizer": "Qwen/QwQ-32B"}
    assert served_fields("target", Served(server.base_url), {"tokenizer": "mine"})["model"] == "tiny"


def test_a_server_of_several_models_has_to_be_told_which(server: SmallServer) -> None:
    server.adapters = {"large": ""}
    with pytest.raises(UsageError) as raised:
        served_fields("target", Served(server.base_url), {})
    assert f"{server.base_url} serves tiny, large; name one: target={server.base_url}#tiny" in str(raised.value)


def test_a_server_whose_model_is_named_by_its_hub_name_is_not_asked(server: SmallServer) -> None:
    assert served_fields("target", Served(server.base_url, "Qwen/QwQ-32B"), {})["model"] == "Qwen/QwQ-32B"
    assert server.seen == []


# The hub.

CONFIG = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}


class Hub(BaseHTTPRequestHandler):
    """Has one model."""

    def do_GET(self) -> None:
        known = self.path == "/someone/model/resolve/main/config.json"
        content = json.dumps(CONFIG).encode() if known else b""
        self.send_response(200 if known else 401)
        if not known:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None: ...


@contextmanager
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_configuration_of_a_model_is_read_at_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with hub() as url:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
        card = card_of("target", "someone/model")
        assert (card.source, card.max_model_len) == ("its config.json on the hub", 4096)
        assert card.shape is not None
        with pytest.raises(UsageError, match="--model target=someone/other: unknown to the Hugging Face hub, or you have no access"):
            card_of("target", "someone/other")


@pytest.mark.parametrize("answers", [False, True])
def test_without_the_hub_a_name_is_refused_in_seconds(monkeypatch: pytest.MonkeyPatch, server: SmallServer, answers: bool) -> None:
    """Where nothing listens, and where what listens says nothing."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("pipeline.engines.hub.HUB_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1] if answers else 9}")
        for role, refused in (("target", card_of), ("target", check_model)):
            with pytest.raises(PipelineError, match=r"not on this machine, and the Hugging Face hub .*; (expected|name) a "):
                refused(role, "someone/model-7B")
        with pytest.raises(UsageError, match=r"#made/up: the server has no such model; known are `tiny`"):
            served_fields("target", Served(server.base_url, "made/up"), {})
        server.adapters = {"made/up": ""}
        with pytest.raises(UsageError, match=r"#made/up: no tokenizer: made/up is not on .*with --set engines\.target\.tokenizer=NAME"):
            served_fields("target", Served(server.base_url, "made/up"), {})
