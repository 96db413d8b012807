"""The start of engine `openai`: a server that never says what it is, and one that says what no model has."""

from typing import Any

import anyio
import pytest

from pipeline.engine import Request
from pipeline.engines.openai.backend import open_openai
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError, RequestRefused
from tests.support.paths import ROOT
from tests.support.small_server import VLLM, SmallServer, edited, hang, small_server, status

TOKENIZER = HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))


def opened(server: SmallServer, **fields: Any) -> int:
    """The context length of an engine over `server`."""

    async def main() -> int:
        spec = OpenAISpec(model="tiny", base_url=server.base_url, tokenizer="bundled:tiny-target", **fields)
        async with open_openai({"draft": spec}) as engines:
            return engines["draft"].max_model_len

    return anyio.run(main)


@pytest.mark.parametrize("asked", ["/models", "/completions"])
def test_a_server_that_never_answers_is_not_waited_for(asked: str) -> None:
    with small_server(VLLM, TOKENIZER) as server:
        server.always = lambda handler, reply: hang(handler, reply) if handler.path.endswith(asked) else handler.send(reply)
        with pytest.raises(GraphError, match=r"^engine 'draft': its servers did not say .* within startup_timeout_s=0\.3; increase it if"):
            opened(server, startup_timeout_s=0.3)


def test_what_a_busy_server_can_do_is_not_known() -> None:
    with small_server(VLLM, TOKENIZER) as server:
        busy = status(429, "later")
        server.always = lambda handler, reply: busy(handler, reply) if handler.path.endswith("/completions") else handler.send(reply)
        with pytest.raises(GraphError, match=r"answered 429: later; it has been busy for reconnect_s=0\.2$"):
            opened(server, reconnect_s=0.2)


@pytest.mark.parametrize("length", [-5, 0])
def test_a_context_length_that_is_none_is_not_believed(length: int) -> None:
    with small_server(VLLM, TOKENIZER) as server:
        server.always = edited(lambda answer: answer["data"][0].update(max_model_len=length) if "data" in answer else None)
        with pytest.raises(GraphError, match="does not report the context length of 'tiny'; set max_model_len"):
            opened(server)
        assert opened(server, max_model_len=256) == 256


def test_an_adapter_is_asked_for_by_its_served_name() -> None:
    served = {"tiny-selection": "tiny", "other-selection": "huge"}
    prompt = TOKENIZER.encode("How many?")

    async def ask(url: str) -> None:
        spec = OpenAISpec(
            model="tiny", base_url=url, tokenizer="bundled:tiny-target", max_model_len=256, adapters={"selection": "tiny-selection"}
        )
        async with open_openai({"target": spec}) as engines:
            for adapter in (None, "selection"):
                await engines["target"].generate(Request(request_id="r", prompt_ids=prompt, max_tokens=4, adapter=adapter))
            with pytest.raises(RequestRefused, match="the engine has no adapter 'other', but selection"):
                await engines["target"].generate(Request(request_id="r", prompt_ids=prompt, max_tokens=4, adapter="other"))

    with small_server(VLLM, TOKENIZER) as server:
        server.adapters = served
        anyio.run(ask, server.base_url)
        assert [body["model"] for body in server.bodies[-2:]] == ["tiny", "tiny-selection"]
        with pytest.raises(GraphError, match="does not serve 'tiny-selektion' as the adapter 'selection'; did you mean `tiny-selection`"):
            opened(server, adapters={"selection": "tiny-selektion"})
        with pytest.raises(
            GraphError, match="serves 'other-selection', configured as the adapter 'selection' of 'tiny', as an adapter of 'huge'"
        ):
            opened(server, adapters={"selection": "other-selection"})
