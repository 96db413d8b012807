"""What engine `openai` learns of the caches of its servers: their size, and what they found in them."""

import anyio
import pytest

from pipeline.engine import Completion, Fact, Request
from pipeline.engines.openai.backend import open_openai
from pipeline.engines.openai.probe import CacheConfig, cache_config
from pipeline.engines.openai.spec import OpenAISpec
from pipeline.engines.openai.stated import PromptDetails, UsageBody, usage_of
from pipeline.engines.tokenizer import HFTokenizer
from tests.support.paths import ROOT
from tests.support.small_server import VLLM, SmallServer, edited, small_server

TOKENIZER = HFTokenizer(str(ROOT / "pipeline/models/tiny-target"))
LINE = 'vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="%d",num_cpu_blocks="None",num_gpu_blocks="%s"} 1.0\n'
OTHERS = '# TYPE vllm:cache_config_info gauge\nvllm:num_requests_running{engine="0",model_name="tiny"} 0.0\n'


def test_the_size_of_a_cache_is_read_of_all_engines_of_a_server() -> None:
    assert cache_config(OTHERS + LINE % (0, "100") + LINE % (1, "50")) == CacheConfig(16, 16 * 150)


def test_what_a_cache_holds_is_what_vllm_works_out_where_it_does() -> None:
    more = LINE.replace("} 1.0", ',effective_attention_block_size="32",kv_cache_size_tokens="%s"} 1.0')
    assert cache_config(more % (0, "100", "900") + more % (1, "100", "500")) == CacheConfig(32, 1400)
    assert cache_config(more % (0, "100", "None")) == CacheConfig(32, 3200)


@pytest.mark.parametrize(
    "metrics", ["", OTHERS, LINE % (0, "None"), LINE % (0, "100") + LINE % (1, "0"), LINE.replace("16", "0") % (0, "9")]
)
def test_a_size_that_is_not_stated_is_not_made_up(metrics: str) -> None:
    assert cache_config(metrics) is None


def facts_of(*servers: SmallServer) -> dict[str, Fact]:
    async def main() -> dict[str, Fact]:
        spec = OpenAISpec(model="tiny", base_url=tuple(server.base_url for server in servers), tokenizer="bundled:tiny-target")
        async with open_openai({"draft": spec}) as engines:
            return dict(engines["draft"].facts)

    return anyio.run(main)


@pytest.mark.slow
def test_caches_of_replicas_add_up_where_all_state_their_size() -> None:
    with small_server(VLLM, TOKENIZER) as one, small_server(VLLM, TOKENIZER) as other:
        one.metrics = LINE % (0, "100")
        assert "kv_cache_tokens" not in facts_of(one, other)
        other.metrics = LINE % (0, "25")
        assert {"kv_cache_tokens": 2000, "block_size": 16}.items() <= facts_of(one, other).items()


def answers(server: SmallServer, *requests: Request) -> list[Completion]:
    async def main() -> list[Completion]:
        spec = OpenAISpec(model="tiny", base_url=server.base_url, tokenizer="bundled:tiny-target")
        async with open_openai({"draft": spec}) as engines:
            return [await engines["draft"].generate(request) for request in requests]

    return anyio.run(main)


@pytest.mark.slow
def test_what_was_cached_is_known_once_a_server_has_said_it() -> None:
    prompt = TOKENIZER.encode("How many pens?")
    requests = [Request(request_id=str(number), prompt_ids=prompt, max_tokens=1) for number in range(3)]
    with small_server(VLLM, TOKENIZER) as server:
        assert [answer.usage.cached_input_tokens for answer in answers(server, *requests)] == [3] * 3
        server.always = edited(lambda answer: answer.get("usage", {}).update(prompt_tokens_details=None))
        assert [answer.usage.cached_input_tokens for answer in answers(server, *requests)] == [None] * 3


@pytest.mark.slow
def test_what_several_candidates_of_one_answer_found_is_not_known() -> None:
    prompt = TOKENIZER.encode("How many pens?")
    one, several = (Request(request_id="r", prompt_ids=prompt, max_tokens=1, n=n, temperature=1.0) for n in (1, 3))
    with small_server(VLLM, TOKENIZER) as server:
        assert [answer.usage.cached_input_tokens for answer in answers(server, several, one, several)] == [None, 3, None]


@pytest.mark.parametrize(("cached", "least"), [((0, 8, 8), 0), ((8, 4, 8), 4), ((8, None, 8), 0), ((None, None, None), None)])
def test_of_several_answers_the_one_with_the_least_in_the_cache_speaks(cached: tuple[int | None, ...], least: int | None) -> None:
    request = Request(request_id="r", prompt_ids=[1] * 10, max_tokens=2, n=3, temperature=1.0)
    bodies = [UsageBody(prompt_tokens=10, completion_tokens=1, prompt_tokens_details=PromptDetails(cached_tokens=each)) for each in cached]
    assert usage_of(request, bodies, 3).cached_input_tokens == least
