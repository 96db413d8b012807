"""The contract in vLLM's terms: requests and outputs. No engine is started."""

import warnings
from collections.abc import Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.engine import Request
from pipeline.engines.vllm.spec import VllmSpec
from pipeline.graph.load import load_engines
from tests.support.paths import ROOT

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def terms() -> Any:
    if find_spec("vllm") is None:
        pytest.skip("vllm is not installed here")
    with warnings.catch_warnings(action="ignore"):  # vLLM's own, while it is imported
        from pipeline.engines.vllm import terms as vllm_terms
    return vllm_terms


def decode(ids: Sequence[int]) -> str:
    return "".join({7: ".\n", 8: "\n", 9: "<end>"}.get(token, chr(ord("a") + token)) for token in ids)


def request(**options: Any) -> Request:
    return Request(**{"request_id": "r", "prompt_ids": [1, 2, 3], "max_tokens": 50} | options)


def output(ids: Sequence[int], finish: str = "stop", stop: str | int | None = None) -> Any:
    logprobs = [{token: SimpleNamespace(logprob=-float(token))} for token in ids]
    return SimpleNamespace(
        token_ids=list(ids), finish_reason=finish, stop_reason=stop, cumulative_logprob=-float(sum(ids)), logprobs=logprobs
    )


ENDS: dict[str, tuple[dict[str, Any], Any, tuple[int, ...], str, Any]] = {
    "the end of sequence goes": ({}, output([1, 2, 9]), (1, 2), "stop", None),
    "one of the model's own goes": ({}, output([1, 6], stop=6), (1,), "stop", None),
    "what was speculated beyond a stop string goes": ({"stop": ("\n\n",)}, output([1, 7, 8, 4], stop="\n\n"), (1, 7, 8), "stop", "\n\n"),
    "also an end of sequence": ({"stop": ("\n\n",)}, output([7, 8, 9], stop="\n\n"), (7, 8), "stop", "\n\n"),
}


@pytest.mark.parametrize(("asked", "got", "ids", "finish", "stop"), ENDS.values(), ids=ENDS)
def test_where_a_candidate_ends(terms: Any, asked: dict[str, Any], got: Any, ids: tuple[int, ...], finish: str, stop: Any) -> None:
    candidate = terms.candidate(request(**asked, logprobs=True), got, decode)
    assert (candidate.ids, candidate.finish_reason, candidate.stop_reason) == (ids, finish, stop)
    assert candidate.text == decode(ids)
    if stop == "\n\n":
        assert candidate.cumulative_logprob == -sum(ids)
    assert candidate.confidence is not None
    sampled = got.token_ids[: len(ids)] if stop == "\n\n" else got.token_ids
    assert candidate.confidence.mean == -sum(sampled) / len(sampled)
    assert candidate.confidence.min == -max(sampled)


def test_everything_is_said_and_nothing_left_to_the_models_defaults(terms: Any) -> None:
    asked = request(n=4, temperature=0.6, top_p=0.9, top_k=20, min_p=0.1, seed=(1 << 63) - 1, stop=("\n\n",), stop_ids=(5,))
    for index, params in zip(range(4), terms.sampling_params(asked, 40, speculates=False), strict=True):
        assert params.seed == (1 << 63) - 1 + index
        said = (params.n, params.temperature, params.top_p, params.top_k, params.min_p, params.stop, params.stop_token_ids)
        assert said == (1, 0.6, 0.9, 20, 0.1, ["\n\n"], [5])
        assert (params.max_tokens, params.detokenize) == (37, True), "the context has 40 places"
    (greedy,) = terms.sampling_params(request(n=3), 40, speculates=False)
    assert not greedy.detokenize
    for speculates in (False, True):
        (choice,) = terms.sampling_params(request(max_tokens=1, option_ids=(4, 5, 6)), 40, speculates=speculates)
        found = (choice.allowed_token_ids, choice.logprob_token_ids, choice.logprobs)
        assert found == ([4, 5, 6], *((None, terms.MAX_LOGPROBS) if speculates else ([4, 5, 6], 3)))


def whole(ids: Sequence[int], cached: int | None) -> Any:
    """A final `RequestOutput` of a prompt of three tokens."""
    stamps = SimpleNamespace(queued_ts=1.0, scheduled_ts=2.0, first_token_ts=4.0, last_token_ts=7.0)
    return SimpleNamespace(prompt_token_ids=[1, 2, 3], num_cached_tokens=cached, outputs=[output(ids)], metrics=stamps)


def test_greedy_candidates_are_computed_once_and_of_others_the_one_with_the_least_in_the_cache_speaks(terms: Any) -> None:
    greedy = terms.completion(request(n=3), [whole([4, 9], 2)], decode)
    assert [c.ids for c in greedy.candidates] == [(4,)] * 3
    assert (greedy.usage.input_tokens, greedy.usage.cached_input_tokens, greedy.usage.output_tokens) == (3, 2, 2)
    assert (greedy.timing.prefill_time_s, greedy.timing.decode_time_s) == (2, 3)
    for cached, states in (((2, 0, 2), 0), ((2, 2, 2), 2), ((None, None, None), 0)):
        sampled = terms.completion(request(n=3, temperature=1.0), [whole([4], each) for each in cached], decode)
        assert (sampled.usage.cached_input_tokens, sampled.usage.output_tokens) == (states, 3)


def arguments(terms: Any, *, on_cpu: bool = False, **options: Any) -> dict[str, Any]:
    return dict(terms.arguments("target", VllmSpec(model="m", **options), "folder", on_cpu=on_cpu))


def test_any_argument_reaches_vllm_beside_what_this_package_sets(terms: Any) -> None:
    from vllm import AsyncEngineArgs

    said = {"dtype": "bfloat16", "max_model_len": 8192, "gpu_memory_utilization": 0.8, "enable_prefix_caching": False}
    inner = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    found = arguments(terms, args=said, speculative_config=inner)
    own = {"model": "folder", "served_model_name": "target", "trust_remote_code": False, "speculative_config": inner}
    assert found == said | own | {"scheduling_policy": "priority", "max_logprobs": terms.MAX_LOGPROBS}
    AsyncEngineArgs(**found)  # vLLM has all of these
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such'"):
        AsyncEngineArgs(**arguments(terms, args={"no_such": 1}))
    # The CPU build has defaults, which `args` override, and a slot more than adapters.
    found = arguments(terms, on_cpu=True, args={"max_model_len": 20_000, "kv_cache_memory_bytes": 1}, adapters={"a": "x", "b": "y"})
    assert (found["enable_chunked_prefill"], found["max_num_batched_tokens"], found["kv_cache_memory_bytes"]) == (False, 20_000, 1)
    assert found["max_loras"] == 3


@pytest.mark.parametrize("path", sorted((ROOT / "graphs/engines").glob("*.yaml")), ids=lambda path: path.stem)
def test_vllm_has_the_arguments_of_every_engines_file(terms: Any, path: Path) -> None:
    from vllm import AsyncEngineArgs

    known = {field.name for field in fields(AsyncEngineArgs)}
    assert all(set(spec.args) <= known for spec in load_engines(path).values() if isinstance(spec, VllmSpec))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"args": {"model": "x"}}, "args must not hold `model`: set it next to `args`"),
        ({"args": {"max_loras": 2}}, "args must not hold `max_loras`: `adapters` sets it"),
        ({"devices": (1,), "args": {"tensor_parallel_size": 2}}, "`devices` names the GPUs 1, but `tensor_parallel_size` is 2"),
    ],
)
def test_what_is_set_elsewhere_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        VllmSpec(model="m", **fields)


def test_a_flaw_in_a_configuration_is_told_in_vllms_words(terms: Any) -> None:
    from vllm.config import SchedulerConfig

    with pytest.raises(ValueError, match="validation error") as raised:
        SchedulerConfig(max_num_seqs="many", max_model_len=512, is_encoder_decoder=False)
    assert terms.first_line(raised.value) == "max_num_seqs: Input should be a valid integer, unable to parse string as an integer"
