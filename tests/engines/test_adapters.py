"""Adapters of an engine: an unknown one is refused, and no cache is shared between them."""

import pytest
from msgspec import structs

from pipeline.engine import Request
from pipeline.engines.sim.cache import PrefixCache
from pipeline.engines.validate import validate_request
from pipeline.errors import RequestRefused


def test_an_engine_refuses_an_adapter_that_it_does_not_have() -> None:
    request = Request(request_id="r", prompt_ids=[1], max_tokens=1, adapter="selection")
    with pytest.raises(RequestRefused, match="request 'r': the engine has no adapter 'selection', but other"):
        validate_request(request, 16, 16, ("other",))
    with pytest.raises(RequestRefused, match=r"the engine has no adapter 'selection'$"):
        validate_request(request, 16, 16)
    validate_request(request, 16, 16, ("selection",))
    assert len({structs.replace(request, adapter=adapter).digest() for adapter in (None, "selection", "other")}) == 3


def test_a_simulated_cache_shares_no_prefix_between_adapters() -> None:
    length = 40
    cache, prompt = PrefixCache(10_000), list(range(length))
    for adapter in (None, "a", "b"):
        node, cached = cache.match(prompt, length - 1, adapter)
        assert cached == 0
        cache.extend(node, prompt)
        assert cache.match(prompt, length - 1, adapter)[1] == length - 1
    assert cache.cached == 3 * length
