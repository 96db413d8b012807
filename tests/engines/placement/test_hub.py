"""What is asked of the hub about a model that is not on this machine."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import pytest

from pipeline.engines.placement.hub import card_of
from pipeline.errors import UsageError

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
        assert (card.source, card.rough, card.max_model_len) == ("its config.json on the hub", False, 4096)
        assert card.shape is not None
        with pytest.raises(UsageError, match="--model target=someone/other: the Hugging Face hub has no such model, or you have no access"):
            card_of("target", "someone/other")


def test_without_the_hub_the_name_tells_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with hub() as url:
        pass
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    card = card_of("target", "someone/model-7B")
    assert (card.source, card.parameters) == ("its name", 7_000_000_000)
