"""The start of engine `openai`: a server that never says what it is, and one that says what no model has."""

from typing import Any

import anyio
import pytest

from pipeline.engines.openai.backend import open_openai
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.tokenizer import HFTokenizer
from pipeline.errors import GraphError
from tests.support.paths import ROOT
from tests.support.small_server import VLLM, SmallServer, edited, hang, small_server

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
        with pytest.raises(GraphError, match=r"^engine 'draft': its servers did not say .* within startup_timeout_s=0\.3; set more where"):
            opened(server, startup_timeout_s=0.3)


@pytest.mark.parametrize("length", [-5, 0])
def test_a_context_length_that_is_none_is_not_believed(length: int) -> None:
    with small_server(VLLM, TOKENIZER) as server:
        server.always = edited(lambda answer: answer["data"][0].update(max_model_len=length) if "data" in answer else None)
        with pytest.raises(GraphError, match="does not say the context length of 'tiny'; set max_model_len"):
            opened(server)
        assert opened(server, max_model_len=256) == 256
