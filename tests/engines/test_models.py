"""Models that are only named: what is asked at the hub, what a card tells, and what is refused before anything is loaded."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from pipeline.engines.models import ModelCard, check_model, read_card
from pipeline.errors import GraphError
from tests.support.paths import MODELS

CONFIG = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "max_position_embeddings": 4096}
NAMES = ("model-1.safetensors", "model-2.safetensors", "consolidated.safetensors", "a/b.bin")
FILES = [{"rfilename": name, "size": 5000} for name in NAMES]
PAGES = {"/someone/model/resolve/main/config.json": CONFIG, "/api/models/someone/model?blobs=true": {"siblings": FILES}}


class Hub(BaseHTTPRequestHandler):
    """Has one model."""

    def do_GET(self) -> None:
        content = json.dumps(PAGES[self.path]).encode() if self.path in PAGES else b""
        self.send_response(200 if content else 401)
        self.send_header("Content-Length", str(len(content)))
        if not content:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None: ...


def test_a_model_that_is_not_here_is_asked_for_at_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            card = read_card("someone/model")
            assert (card.weights_bytes, card.kv_values, card.max_model_len) == (10_000, 2 * 2 * 64, 4096)
            check_model("here", "someone/model")
            with pytest.raises(GraphError, match=r"^here: someone/other: unknown to the Hugging Face hub, or you have no access"):
                check_model("here", "someone/other")
        finally:
            server.shutdown()


@pytest.mark.parametrize("answers", [False, True])
def test_without_the_hub_a_name_is_refused_in_seconds(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """Where nothing listens, and where what listens says nothing."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("pipeline.engines.hub.HUB_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1] if answers else 9}")
        with pytest.raises(GraphError, match=r"not on this machine, and the Hugging Face hub cannot be reached .*; name a folder"):
            check_model("here", "someone/model-7B")


def test_what_is_no_model_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for model, said in (
        (tmp_path, "holds no model, as it has no config.json; an adapter is named under `adapters` in an engines file"),
        (tmp_path / "none", "no such directory: .*; name a folder with the model's files, or a model on the hub"),
        ("someone/model-7B", "is not in the local Hugging Face cache, and HF_HUB_OFFLINE forbids a download"),
    ):
        with pytest.raises(GraphError, match=f"^here: .*{said}"):
            check_model("here", str(model))


def test_a_card_tells_what_weights_and_a_token_take(tmp_path: Path) -> None:
    found = read_card(str(MODELS / "tiny-target"))
    assert found.weights_bytes == (MODELS / "tiny-target/model.safetensors").stat().st_size
    config = json.loads((MODELS / "tiny-target/config.json").read_bytes())
    assert (found.layers, found.heads) == (config["num_hidden_layers"], config["num_attention_heads"])
    assert found.kv_values == 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    for odd in ({"kv_lora_rank": 512}, {"layer_types": ["sliding_attention", "full_attention"]}):
        (tmp_path / "config.json").write_text(json.dumps(config | odd))
        assert read_card(str(tmp_path)).kv_values is None
    packed = ModelCard(weights_bytes=2000, dtype="bfloat16")
    assert [packed.weights_as(each) for each in (None, "fp8", "awq")] == [2000, 1000, 500]
