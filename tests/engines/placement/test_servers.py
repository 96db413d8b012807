"""Servers that play a role: which model they have is asked where it is not said."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from pipeline.engines.placement.choices import Served
from pipeline.engines.placement.servers import served_fields
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, UsageError
from tests.support.paths import ROOT
from tests.support.small_server import HOSTED, VLLM, SmallServer, small_server

TOKENIZER = HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))


@pytest.fixture
def server() -> Iterator[SmallServer]:
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


def test_a_chat_server_says_its_context_length_or_it_has_to_be_set(server: SmallServer) -> None:
    choice = Served(server.base_url, "tiny", chat=True)
    assert served_fields("target", choice, {}) == {"backend": "chat", "model": "tiny", "base_url": server.base_url, "max_model_len": 512}
    with small_server(HOSTED, TOKENIZER) as silent:
        choice = Served(silent.base_url, chat=True)
        with pytest.raises(UsageError, match=r"does not report the context length of .tiny.; add --set engines"):
            served_fields("target", choice, {})
        assert served_fields("target", choice, {"max_model_len": 4096})["model"] == "tiny"


def test_a_server_that_is_not_there_is_one_error(server: SmallServer) -> None:
    url = server.base_url
    server.stop()
    with pytest.raises(GraphError, match=r"--model target=\.\.\.: the server"):
        served_fields("target", Served(url), {})
    server.start()
