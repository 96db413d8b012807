"""What every engine backend must do, whatever it computes with.

A backend joins by an entry in `BACKENDS`: its name, and a function of the pytest request that gives a `Converse`,
which runs a conversation with an open engine on the event loop (or the clock) where that engine lives.
"""

import math
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import astuple

from pipeline.engine import Completion, Content, Engine, Fact, Request
from pipeline.engines.sim.engine import BACKEND as SIM_BACKEND
from pipeline.engines.validate import validate_completion
from pipeline.errors import ContextOverflow, RequestRefused
from pipeline.run.loop import in_loop
from pipeline.stages.build import cannot_of
from tests.support.engines import SIM, Converse, Talk, ask_all, prompt_of
from tests.support.served import KINDS, TOKENIZER, spec_of, talk
from tests.support.small_server import Kind, small_server

PROBLEM = "Lily has 19 pens. Lily sells 5 packs of 2. Lily drops 9. How many pens has Lily now?"
LARGEST_BLOCK_TOKENS = 32
"""What a prefix cache may hold is rounded down to blocks; vLLM's CPU build has the largest."""
LONG = "Mia has 8 apples. Mia buys 3 packs of 4. Mia loses 5. " * 2 + PROBLEM
OTHERS = [f"Finn has {n} coins. Finn finds {n // 2 + 1}. Finn loses 3. How many coins has Finn now?" for n in range(5, 19)]


def on_engine(open_: Callable[[pytest.FixtureRequest], Engine]) -> Callable[[pytest.FixtureRequest], Converse]:
    """An engine that is open, and talked to on the event loop where it lives."""

    def converse_of(request: pytest.FixtureRequest) -> Converse:
        engine, portal = open_(request), request.getfixturevalue("portal")
        return lambda talk: portal.call(talk, engine)

    return converse_of


def sim_converse(request: pytest.FixtureRequest) -> Converse:
    """A fresh simulated engine for each test, on a clock that jumps."""

    def converse(talk: Talk) -> None:
        async def main() -> None:
            async with SIM_BACKEND.open({"draft": SIM}) as engines:
                await talk(engines["draft"])

        in_loop(main, virtual=True)

    return converse


def small_converse(kind: Kind) -> Callable[[pytest.FixtureRequest], Converse]:
    """A fresh engine over a fresh small server of that kind for each test."""

    def converse(talk_: Talk) -> None:
        with small_server(kind, TOKENIZER) as server:
            talk(spec_of(server), talk_)

    return lambda request: converse


BACKENDS: dict[str, Callable[[pytest.FixtureRequest], Converse]] = {
    **{f"openai-{name}": small_converse(kind) for name, kind in KINDS.items()},
    "torch": on_engine(lambda request: request.getfixturevalue("torch_draft")),  # in this process: test_process.py has the worker
    "sim": sim_converse,
    "vllm": on_engine(lambda request: request.getfixturevalue("vllm_engines")["draft"]),
    "vllm-server": on_engine(lambda request: request.getfixturevalue("openai_engines")["draft"]),  # a vLLM server over loopback
}
MARKS = {"torch": pytest.mark.torch, "vllm": pytest.mark.vllm, "vllm-server": pytest.mark.vllm}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in BACKENDS])
def converse(request: pytest.FixtureRequest) -> Converse:
    return BACKENDS[request.param](request)


class Checked:
    """An engine each of whose answers is checked, as those of foreign engines are in a run."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.lacks = ""
        """Why the rest of a test does not concern it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(self, request: Request) -> Completion:
        answer: Completion = await self._engine.generate(request)
        assert validate_completion(answer, request, self._engine.vocab_size) is None
        return answer


def contract(talk: Talk) -> Callable[[Converse], None]:
    """The test of a conversation with an engine, for every backend."""

    def test(converse: Converse) -> None:
        engines: list[Checked] = []

        async def checked(engine: Engine) -> None:
            engines.append(Checked(engine))
            await talk(engines[0])

        converse(checked)
        if engines[0].lacks:  # not skipped on the engine's loop, which that would end
            pytest.skip(engines[0].lacks)

    return test


def thinking(engine: Engine, problem: str = PROBLEM, **options: object) -> Request:
    defaults = {"request_id": problem, "prompt_ids": prompt_of(engine, problem), "max_tokens": 12, "temperature": 0.8, "seed": 11}
    defaults["content"] = Content(problem)
    return Request(**defaults | options)  # type: ignore[arg-type]


LEAST_ALIKE = 0.75
"""Share of the tokens up to the first difference that may be expected of an engine that promises no equal answers."""


def check_alike(engine: Engine, found: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> None:
    """Fail where the ids of candidates differ, as far as the engine promises that what else it computes changes none of them."""
    assert len(found) == len(wanted)
    if engine.facts.get("batch_invariant"):
        assert [tuple(ids) for ids in found] == [tuple(ids) for ids in wanted]
        return
    agreed = sum(
        sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(*pair, strict=False))) for pair in zip(found, wanted, strict=True)
    )
    assert agreed >= LEAST_ALIKE * max(sum(map(len, found)), sum(map(len, wanted)))


def ids_of(*answers: Completion) -> list[tuple[int, ...]]:
    return [candidate.ids for answer in answers for candidate in answer.candidates]


@contract
async def test_its_tokenizer_makes_control_tokens_of_its_template_s_parts_alone(engine: Engine) -> None:
    tokenizer = engine.tokenizer
    assert tokenizer.control_ids
    assert tokenizer.control_ids <= set(tokenizer.special_ids.values())
    for text, id_ in tokenizer.special_ids.items():
        if id_ in tokenizer.control_ids:
            ids = tokenizer.encode_parts([text, f"a{text}b", text])
            assert (ids[0], ids[-1]) == (id_, id_)
            assert tokenizer.control_ids.isdisjoint(ids[1:-1])
            assert tokenizer.decode(ids) == f"{text}a{text}b{text}"


@contract
async def test_gives_as_many_candidates_as_asked_for_and_says_how_sure_it_was_of_them(engine: Checked) -> None:
    if "logprobs" in cannot_of(engine):
        engine.lacks = "it gives no log probabilities"
        return
    answer = await engine.generate(thinking(engine, n=4, temperature=1.5, logprobs=True))
    assert len(answer.candidates) == 4
    for candidate in answer.candidates:
        found, tokens = candidate.confidence, len(candidate.ids) + candidate.ended
        assert 1 <= len(candidate.ids) <= 12
        assert candidate.text == engine.tokenizer.decode(candidate.ids)
        assert found is not None
        assert found.mean * tokens == pytest.approx(candidate.cumulative_logprob, abs=1e-3)
        assert found.min <= found.mean <= 0
        assert 0 < found.first_entropy < math.log(engine.vocab_size)
        assert 0 <= found.margin <= 1
    without = await engine.generate(thinking(engine, n=3, temperature=1.5))
    assert [candidate.confidence for candidate in without.candidates] == [None] * 3


@contract
async def test_a_candidate_depends_on_its_seed_and_index_alone(engine: Engine) -> None:
    first, again, other = [await engine.generate(thinking(engine, n=6, temperature=1.5, seed=s)) for s in (3, 3, (1 << 63) - 1)]
    assert ids_of(first) == ids_of(again) != ids_of(other)
    assert len(set(ids_of(first))) > 1
    many = await engine.generate(thinking(engine, n=19, temperature=1.5, seed=3))  # more than it has places
    assert (len(many.candidates), many.usage.input_tokens) == (19, first.usage.input_tokens)
    check_alike(engine, ids_of(many)[:6], ids_of(first))


@contract
async def test_a_crowd_changes_nothing_and_usage_and_statistics_add_up(engine: Engine) -> None:
    requests = [thinking(engine, problem, n=1 + index % 3, seed=index) for index, problem in enumerate(OTHERS)]
    alone = [await engine.generate(request) for request in requests]
    before = engine.statistics()
    crowd = await ask_all(engine, requests)
    counted = engine.statistics().plus(before, -1)
    check_alike(engine, ids_of(*crowd), ids_of(*alone))
    assert counted.requests == len(OTHERS)
    for name in ("input_tokens", "cached_input_tokens", "output_tokens"):
        assert (getattr(counted, name) or 0) == sum(getattr(a.usage, name) or 0 for a in crowd)  # a server may not say what was cached
    assert counted.busy_s > 0
    if before.written_tokens is not None:
        assert counted.written_tokens == sum(answer.usage.output_tokens for answer in crowd)
    for answer, request in zip(crowd, requests, strict=True):
        assert answer.usage.input_tokens == len(request.prompt_ids)
        assert sum(len(c.ids) for c in answer.candidates) <= answer.usage.output_tokens


@contract
async def test_a_stop_ends_a_candidate_and_is_kept(engine: Engine) -> None:
    answer = await engine.generate(thinking(engine, n=4, max_tokens=100, stop=("\n\n",)))
    stopped = [c for c in answer.candidates if c.stop_reason == "\n\n"]
    assert stopped
    for candidate in stopped:
        assert candidate.finish_reason == "stop"
        assert "\n\n" in candidate.text
        assert "\n\n" not in engine.tokenizer.decode(candidate.ids[:-1])
    free = (await engine.generate(thinking(engine))).candidates[0]
    last = free.ids[3]
    (candidate,) = (await engine.generate(thinking(engine, stop_ids=(last,)))).candidates
    assert candidate.ids == free.ids[: free.ids.index(last) + 1]
    assert (candidate.finish_reason, candidate.stop_reason) == ("stop", last)


@contract
async def test_end_of_sequence_ends_and_is_counted_but_kept_only_where_it_is_a_stop_id(engine: Engine) -> None:
    for stop_ids in ((),) if engine.facts.get("prompts") == "text" else ((), tuple(engine.tokenizer.eos_ids)):
        answer = await engine.generate(thinking(engine, max_tokens=400, temperature=0.0, stop_ids=stop_ids))
        (candidate,) = answer.candidates
        assert (candidate.finish_reason, candidate.stop_reason) == ("stop", candidate.ids[-1] if stop_ids else None)
        assert (candidate.ids[-1] in engine.tokenizer.eos_ids) == bool(stop_ids)
        assert answer.usage.output_tokens == len(candidate.ids) + (not stop_ids)


@contract
async def test_max_tokens_ends_with_length_and_is_cut_to_what_the_context_leaves(engine: Engine) -> None:
    answer = await engine.generate(thinking(engine, max_tokens=3))
    assert [(len(c.ids), c.finish_reason, c.stop_reason) for c in answer.candidates] == [(3, "length", None)]
    times = answer.timing
    assert all(part is None or part >= 0 for part in astuple(times))
    if None not in (times.queue_time_s, times.prefill_time_s, times.time_to_first_token_s):
        assert times.time_to_first_token_s == pytest.approx(times.queue_time_s + times.prefill_time_s)  # type: ignore[operator]
    (candidate,) = (await engine.generate(thinking(engine, prompt_ids=filling(engine)[:-2], max_tokens=50))).candidates
    assert len(candidate.ids) <= 2


def filling(engine: Engine) -> list[int]:
    """A prompt that leaves no room in the context."""
    start = prompt_of(engine, PROBLEM)
    return (start * (engine.max_model_len // len(start) + 1))[: engine.max_model_len]


@contract
async def test_what_cannot_be_run_is_refused_in_one_sentence(engine: Engine) -> None:
    prompt = filling(engine)
    with pytest.raises(ContextOverflow, match=f"a prompt of {len(prompt)} tokens leaves no room in a context of {engine.max_model_len}"):
        await engine.generate(thinking(engine, prompt_ids=prompt))
    with pytest.raises(RequestRefused, match=r"^request 'r': n=0 is out of range$"):
        await engine.generate(thinking(engine, request_id="r", n=0))


@contract
async def test_a_choice_gives_all_options_log_probabilities(engine: Checked) -> None:
    if "options" in cannot_of(engine):
        engine.lacks = "it takes no options"
        return
    options = tuple(engine.tokenizer.encode(digit)[-1] for digit in "0123")
    for temperature in (1.0, 0.0):
        answer = await engine.generate(thinking(engine, max_tokens=1, option_ids=options, temperature=temperature))
        (candidate,) = answer.candidates
        assert len(answer.option_logprobs) == len(options)
        assert 0 < sum(map(math.exp, answer.option_logprobs)) <= 1 + 1e-6
        chosen = options.index(candidate.ids[0])
        assert candidate.cumulative_logprob == pytest.approx(answer.option_logprobs[chosen])
        assert answer.usage.output_tokens == 1
    assert answer.option_logprobs[chosen] == max(answer.option_logprobs)


@contract
async def test_where_only_the_likeliest_token_is_left_samples_are_greedy(engine: Checked) -> None:
    if engine.facts.get("answers", "model") != "model":
        engine.lacks = "its texts are made up"
        return
    greedy = await engine.generate(thinking(engine, temperature=0.0))
    for name, bound in {"top_k": 1, "min_p": 1.0}.items():
        if name not in cannot_of(engine):
            drawn = await engine.generate(thinking(engine, temperature=2.0, n=3, **{name: bound}))
            check_alike(engine, ids_of(drawn), ids_of(greedy) * 3)


@contract
async def test_cancelled_requests_free_their_places(engine: Engine) -> None:
    before = engine.statistics()
    async with anyio.create_task_group() as tasks:
        for index in range(60):
            tasks.start_soon(engine.generate, thinking(engine, OTHERS[index % 8], max_tokens=400, stop_ids=(), seed=index))
        await engine.generate(thinking(engine, max_tokens=1, priority=-1))
        tasks.cancel_scope.cancel()
    answer = await engine.generate(thinking(engine, n=8, max_tokens=5))
    assert len(answer.candidates) == 8
    assert engine.statistics().requests < before.requests + 60


@contract
async def test_what_is_in_the_prefix_cache_was_computed_by_an_earlier_request(engine: Engine) -> None:
    for name in range(4):  # another prompt each time: a server keeps its cache
        problem = f"Problem {7 + name} of {name}. {LONG}"
        cold = await engine.generate(thinking(engine, problem, n=4, temperature=1.5, seed=name, affinity="chain"))
        prefix = len(prompt_of(engine, "")) + LARGEST_BLOCK_TOKENS  # of the template, which all prompts begin with
        assert (cold.usage.cached_input_tokens or 0) < prefix
        longer = [*prompt_of(engine, problem), *cold.candidates[1].ids]
        warm = await engine.generate(thinking(engine, prompt_ids=longer, affinity="chain"))
        if (cached := warm.usage.cached_input_tokens) is not None:
            assert cold.usage.input_tokens - LARGEST_BLOCK_TOKENS < cached < warm.usage.input_tokens


@contract
async def test_nothing_counts_as_seen_once_the_engine_forgot(engine: Checked) -> None:
    if not hasattr(engine, "reset_prefix_cache"):
        engine.lacks = "it keeps its cache, as a server does"
        return
    request = thinking(engine, LONG)
    first, again = await engine.generate(request), await engine.generate(request)
    assert again.usage.cached_input_tokens > 0
    await engine.reset_prefix_cache()
    after = await engine.generate(request)
    assert after.usage.cached_input_tokens == 0
    check_alike(engine, ids_of(again, after), ids_of(first) * 2)


FACTS: dict[type, tuple[str, ...]] = {
    str: ("answers", "device_model", "replay"),
    tuple: ("devices", "servers"),
    int: ("accelerators", "cores", "kv_cache_tokens", "kv_cache_sequences", "block_size"),
    float: ("flops_per_s",),
    bool: ("batch_invariant",),
}


@contract
async def test_facts_mean_the_same_for_every_engine(engine: Engine) -> None:
    for kind, names in FACTS.items():
        assert {type(engine.facts[name]) for name in names if name in engine.facts} <= {kind}
    assert engine.facts.get("answers", "model") in ("model", "simulated", "recorded")
    assert msgspec.json.decode(msgspec.json.encode(engine.facts), type=dict[str, Fact]) == engine.facts
