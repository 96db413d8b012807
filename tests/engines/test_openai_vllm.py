"""Engine `openai` against a real vLLM server: what it finds out, and that no request of the contract hurts the server."""

from collections.abc import Mapping

import pytest
from anyio.from_thread import BlockingPortal

from pipeline.engine import Completion, Engine, Request
from tests.support.engines import prompt_of
from tests.support.servers import Running

pytestmark = pytest.mark.vllm
PROBLEM = "Lily has 19 pens. Lily sells 5 packs of 2. Lily drops 9. How many pens has Lily now?"


def test_vllm_is_used_to_the_full(openai_engines: Mapping[str, Engine], portal: BlockingPortal, served_draft: Running) -> None:
    engine = openai_engines["draft"]
    stated = {"server": "vllm", "prompts": "ids", "cannot": ()}
    assert stated.items() <= engine.facts.items()
    assert engine.max_model_len == 512
    long = Request(request_id="r", prompt_ids=prompt_of(engine, " ".join([PROBLEM] * 4)), max_tokens=24)
    again: Completion = [portal.call(engine.generate, long) for _ in range(2)][1]
    assert 0 < (again.usage.cached_input_tokens or 0) < again.usage.input_tokens == len(long.prompt_ids)
    assert served_draft.process.poll() is None
