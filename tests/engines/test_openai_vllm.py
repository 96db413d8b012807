"""Engine `openai` against a real vLLM server: what it finds out, and that no request of the contract hurts the server."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from anyio.from_thread import BlockingPortal

from pipeline.engine import Completion, Request
from pipeline.engines.openai.engine import OpenAIEngine, open_openai
from pipeline.engines.openai.spec import OpenAISpec
from tests.support.engines import prompt_of
from tests.support.servers import Running

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed here"),
]
PROBLEM = "Lily has 19 pens. Lily sells 5 packs of 2. Lily drops 9. How many pens has Lily now?"


@pytest.fixture(scope="session")
def engine(served_draft: Running, portal: BlockingPortal) -> Iterator[OpenAIEngine]:
    spec = OpenAISpec(model="draft", base_url=served_draft.base_url, tokenizer="bundled:tiny-draft")
    with portal.wrap_async_context_manager(open_openai({"draft": spec})) as engines:
        yield engines["draft"]


def ask(engine: OpenAIEngine, portal: BlockingPortal, **fields: object) -> Completion:
    defaults = {"request_id": "r", "prompt_ids": prompt_of(engine, PROBLEM), "max_tokens": 24}
    return portal.call(engine.generate, Request(**defaults | fields))  # type: ignore[arg-type]


def test_vllm_is_used_to_the_full(engine: OpenAIEngine) -> None:
    stated = {
        "server": "vllm",
        "prompts": "ids",
        "outputs": "ids",
        "prompt_tokens": "as sent",
        "options": "exact",
        "stops": "reported by the server",
    }
    stated |= {"candidates": "all in one request", "priorities": True, "cannot": ()}
    assert stated.items() <= engine.facts.items()
    assert engine.max_model_len == 512


def test_times_and_cached_tokens_are_told(engine: OpenAIEngine, portal: BlockingPortal) -> None:
    long = prompt_of(engine, " ".join([PROBLEM] * 4))
    ask(engine, portal, prompt_ids=long)
    again = ask(engine, portal, prompt_ids=long)
    assert 0 < again.usage.cached_input_tokens < again.usage.input_tokens == len(long)
    assert again.timing.time_to_first_token_s is not None
    assert again.timing.decode_time_s is not None


def test_the_server_outlived_it_all(engine: OpenAIEngine, portal: BlockingPortal, served_draft: Running) -> None:
    assert len(ask(engine, portal).candidates) == 1
    assert served_draft.process.poll() is None
