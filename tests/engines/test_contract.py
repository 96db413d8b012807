"""What every engine backend must do, whatever it computes with.

A backend joins by an entry in `BACKENDS`: its name, and a function of the pytest request that gives a `Converse`,
which runs a conversation with an open engine on the event loop (or the clock) where that engine lives.
"""

import math
import re
from collections.abc import Callable, Sequence
from itertools import takewhile

import anyio
import msgspec
import pytest
from anyio.from_thread import BlockingPortal

from pipeline.engine import Completion, Engine, Fact, PrefixCacheReset, Request
from pipeline.engines.validate import validate_completion
from pipeline.errors import ContextOverflow, RequestRefused
from pipeline.run.loop import in_loop
from pipeline.stages.build import cannot_of
from tests.support.engines import SIM, Converse, Talk, ask_all, prompt_of

PROBLEM = "Lily has 19 pens. Lily sells 5 packs of 2. Lily drops 9. How many pens has Lily now?"
LARGEST_BLOCK_TOKENS = 32
"""What a prefix cache may hold is rounded down to blocks; vLLM's CPU build has the largest."""
LONG = "Mia has 8 apples. Mia buys 3 packs of 4. Mia loses 5. " * 2 + PROBLEM
OTHERS = [f"Finn has {n} coins. Finn finds {n // 2 + 1}. Finn loses 3. How many coins has Finn now?" for n in range(5, 19)]


def torch_converse(request: pytest.FixtureRequest) -> Converse:
    """In this process: how a worker is spoken to is tested with an engine that only echoes."""
    engine = request.getfixturevalue("torch_draft")

    def converse(talk: Talk) -> None:
        anyio.run(talk, engine)

    return converse


def sim_converse(request: pytest.FixtureRequest) -> Converse:
    """A fresh simulated engine for each test, on a clock that jumps."""
    sim = pytest.importorskip("pipeline.engines.sim.engine")

    def converse(talk: Talk) -> None:
        async def main() -> None:
            async with sim.BACKEND.open({"draft": SIM}) as engines:
                await talk(engines["draft"])

        in_loop(main, virtual=True)

    return converse


def vllm_converse(request: pytest.FixtureRequest) -> Converse:
    portal: BlockingPortal = request.getfixturevalue("portal")
    engine = request.getfixturevalue("vllm_engines")["draft"]

    def converse(talk: Talk) -> None:
        portal.call(talk, engine)

    return converse


def openai_converse(request: pytest.FixtureRequest) -> Converse:
    """A vLLM server over loopback."""
    portal: BlockingPortal = request.getfixturevalue("portal")
    engine = request.getfixturevalue("openai_engines")["draft"]

    def converse(talk: Talk) -> None:
        portal.call(talk, engine)

    return converse


BACKENDS: dict[str, Callable[[pytest.FixtureRequest], Converse]] = {
    "torch": torch_converse,
    "sim": sim_converse,
    "vllm": vllm_converse,
    "openai-vllm": openai_converse,
}
MARKS = {"torch": pytest.mark.torch, "vllm": pytest.mark.vllm, "openai-vllm": pytest.mark.vllm}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in BACKENDS])
def converse(request: pytest.FixtureRequest) -> Converse:
    return BACKENDS[request.param](request)


def thinking(engine: Engine, problem: str = PROBLEM, **options: object) -> Request:
    defaults = {"request_id": problem, "prompt_ids": prompt_of(engine, problem), "max_tokens": 12, "temperature": 0.8, "seed": 11}
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


def test_its_tokenizer_makes_control_tokens_of_its_template_s_parts_alone(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        tokenizer = engine.tokenizer
        assert tokenizer.control_ids
        assert tokenizer.control_ids <= set(tokenizer.special_ids.values())
        for text, id_ in tokenizer.special_ids.items():
            if id_ in tokenizer.control_ids:
                ids = tokenizer.encode_parts([text, f"a{text}b", text])
                assert (ids[0], ids[-1]) == (id_, id_)
                assert tokenizer.control_ids.isdisjoint(ids[1:-1])
                assert tokenizer.decode(ids) == f"{text}a{text}b{text}"

    converse(talk)


def test_gives_as_many_candidates_as_asked_for(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        answer = await engine.generate(thinking(engine, n=4, logprobs=True))
        assert len(answer.candidates) == 4
        for candidate in answer.candidates:
            assert 1 <= len(candidate.ids) <= 12
            assert candidate.text == engine.tokenizer.decode(candidate.ids)
            assert candidate.cumulative_logprob is not None
            assert candidate.cumulative_logprob <= 0

    converse(talk)


def test_says_how_sure_it_was_of_a_text_where_that_is_asked_for(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        asked = thinking(engine, n=3, temperature=1.5, logprobs=True)
        answer = await engine.generate(asked)
        assert validate_completion(answer, asked, engine.vocab_size) is None
        for candidate in answer.candidates:
            found, tokens = candidate.confidence, len(candidate.ids) + candidate.ended
            assert found is not None
            assert found.mean * tokens == pytest.approx(candidate.cumulative_logprob, abs=1e-3)
            assert found.min <= found.mean <= 0
            assert 0 < found.first_entropy < math.log(engine.vocab_size)
            assert 0 <= found.margin <= 1
        without = await engine.generate(thinking(engine, n=3, temperature=1.5))
        assert [candidate.confidence for candidate in without.candidates] == [None] * 3

    converse(talk)


def test_same_request_same_text_and_another_seed_another_text(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        first, again, other = [await engine.generate(thinking(engine, n=6, temperature=1.5, seed=s)) for s in (3, 3, (1 << 63) - 1)]
        assert [c.ids for c in first.candidates] == [c.ids for c in again.candidates]
        assert [c.ids for c in first.candidates] != [c.ids for c in other.candidates]

    converse(talk)


def test_a_candidate_depends_on_its_seed_and_index_alone(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        two = await engine.generate(thinking(engine, n=2, temperature=1.5))
        four = await engine.generate(thinking(engine, n=4, temperature=1.5))
        check_alike(engine, ids_of(two), ids_of(four)[:2])
        assert len({c.ids for c in four.candidates}) > 1

    converse(talk)


def test_a_crowd_changes_nothing(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        requests = [thinking(engine, problem, n=1 + index % 3, seed=index) for index, problem in enumerate(OTHERS)]
        alone = [await engine.generate(request) for request in requests]
        crowd = await ask_all(engine, requests)
        check_alike(engine, ids_of(*crowd), ids_of(*alone))

    converse(talk)


def test_a_stop_string_ends_after_the_token_that_completes_it(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        answer = await engine.generate(thinking(engine, n=4, max_tokens=100, stop=("\n\n",)))
        stopped = [c for c in answer.candidates if c.stop_reason == "\n\n"]
        assert stopped
        for candidate in stopped:
            assert candidate.finish_reason == "stop"
            assert "\n\n" in candidate.text
            assert "\n\n" not in engine.tokenizer.decode(candidate.ids[:-1])

    converse(talk)


def test_a_stop_id_ends_and_is_kept(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        free = (await engine.generate(thinking(engine))).candidates[0]
        last = free.ids[3]
        stopped = (await engine.generate(thinking(engine, stop_ids=(last,)))).candidates[0]
        assert stopped.ids == free.ids[: free.ids.index(last) + 1]
        assert (stopped.finish_reason, stopped.stop_reason) == ("stop", last)

    converse(talk)


def test_end_of_sequence_ends_and_is_counted_but_not_kept(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        answer = await engine.generate(thinking(engine, max_tokens=400, temperature=0.0))
        (candidate,) = answer.candidates
        assert (candidate.finish_reason, candidate.stop_reason) == ("stop", None)
        assert engine.tokenizer.eos_ids.isdisjoint(candidate.ids)
        assert answer.usage.output_tokens == len(candidate.ids) + 1

    converse(talk)


def test_an_end_of_sequence_id_that_is_a_stop_id_is_kept(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        stop_ids = tuple(engine.tokenizer.eos_ids)
        answer = await engine.generate(thinking(engine, max_tokens=400, temperature=0.0, stop_ids=stop_ids))
        (candidate,) = answer.candidates
        assert (candidate.finish_reason, candidate.stop_reason) == ("stop", candidate.ids[-1])
        assert candidate.ids[-1] in stop_ids
        assert answer.usage.output_tokens == len(candidate.ids)

    converse(talk)


def test_max_tokens_ends_with_length(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        answer = await engine.generate(thinking(engine, max_tokens=3))
        assert [(len(c.ids), c.finish_reason, c.stop_reason) for c in answer.candidates] == [(3, "length", None)]

    converse(talk)


def test_max_tokens_is_cut_to_what_the_context_leaves(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        start = prompt_of(engine, PROBLEM)
        prompt = (start * (engine.max_model_len // len(start) + 1))[: engine.max_model_len - 2]
        (candidate,) = (await engine.generate(thinking(engine, prompt_ids=prompt, max_tokens=50))).candidates
        assert len(candidate.ids) <= 2

    converse(talk)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_choice_gives_all_options_log_probabilities(converse: Converse, temperature: float) -> None:
    async def talk(engine: Engine) -> None:
        options = tuple(engine.tokenizer.encode(digit)[-1] for digit in "0123")
        answer = await engine.generate(thinking(engine, max_tokens=1, option_ids=options, temperature=temperature))
        (candidate,) = answer.candidates
        assert len(answer.option_logprobs) == len(options)
        assert 0 < sum(map(math.exp, answer.option_logprobs)) <= 1 + 1e-6
        chosen = options.index(candidate.ids[0])
        if temperature == 0:
            assert answer.option_logprobs[chosen] == max(answer.option_logprobs)
        assert candidate.cumulative_logprob == pytest.approx(answer.option_logprobs[chosen])
        assert answer.usage.output_tokens == 1

    converse(talk)


def test_a_prompt_that_fills_the_context_overflows(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        prompt = prompt_of(engine, PROBLEM)
        prompt = (prompt * (engine.max_model_len // len(prompt) + 1))[: engine.max_model_len]
        scored = {"prompt_ids": prompt[:-4], "scored_ids": tuple(prompt[:5])}
        full = {"prompt_ids": prompt[:-5], "scored_ids": tuple(prompt[:5])}  # vLLM samples a token behind what it scores
        for options, tokens in (({"prompt_ids": prompt}, len(prompt)), (scored, len(prompt) + 1), (full, len(prompt))):
            says = f"a prompt of {tokens} tokens leaves no room in a context of {engine.max_model_len}"
            with pytest.raises(ContextOverflow, match=says):
                await engine.generate(thinking(engine, **options))

    converse(talk)


@pytest.mark.parametrize(
    ("flaw", "says"),
    [
        ({"prompt_ids": []}, "its prompt is empty"),
        ({"prompt_ids": [1, 1 << 40]}, f"token id {1 << 40} is not in the model's vocabulary"),
        ({"prompt_ids": [1, -1]}, "token id -1 is not in the model's vocabulary"),
        ({"option_ids": (1, -2), "max_tokens": 1}, "token id -2 is not in the model's vocabulary"),
        ({"option_ids": (1, 2), "max_tokens": 2}, "one token or text, not max_tokens=2, n=1"),
        ({"option_ids": (1, 2), "max_tokens": 1, "n": 2}, "one token or text, not max_tokens=1, n=2"),
        ({"option_ids": (1, 2), "max_tokens": 1, "scored_ids": (1,)}, "exclude each other"),
        ({"scored_ids": (1,), "n": 2}, "n=2"),
        ({"max_tokens": 0}, "max_tokens=0 is out of range"),
        ({"n": 0}, "n=0 is out of range"),
        ({"temperature": -1.0}, "temperature=-1.0 is out of range"),
        ({"top_p": 0.0}, "top_p=0.0 is out of range"),
        ({"top_k": -1}, "top_k=-1 is out of range"),
        ({"min_p": 1.5}, "min_p=1.5 is out of range"),
        ({"seed": 1 << 63}, f"seed={1 << 63} is out of range"),
        ({"stop": ("",)}, "stop=('',) is out of range"),
    ],
    ids=str,
)
def test_what_cannot_be_run_is_refused_in_one_sentence(converse: Converse, flaw: dict[str, object], says: str) -> None:
    async def talk(engine: Engine) -> None:
        with pytest.raises(RequestRefused, match=rf"^request 'r': [^\n]*{re.escape(says)}[^\n]*$"):
            await engine.generate(thinking(engine, request_id="r", **flaw))

    converse(talk)


@pytest.mark.parametrize("bound", [{"top_k": 1}, {"min_p": 1.0}], ids=str)
def test_where_only_the_likeliest_token_is_left_samples_are_greedy(converse: Converse, bound: dict[str, object]) -> None:
    async def talk(engine: Engine) -> None:
        if engine.facts.get("answers", "model") != "model" or set(bound) & cannot_of(engine):
            return
        greedy = await engine.generate(thinking(engine, temperature=0.0))
        drawn = await engine.generate(thinking(engine, temperature=2.0, n=3, **bound))
        check_alike(engine, ids_of(drawn), ids_of(greedy) * 3)

    converse(talk)


def test_more_candidates_than_places_start_as_places_free_up(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        many, few = [await engine.generate(thinking(engine, n=n)) for n in (19, 8)]
        check_alike(engine, ids_of(many)[:8], ids_of(few))
        assert len(many.candidates) == 19
        assert many.usage.input_tokens == few.usage.input_tokens
        assert (engine.statistics().running, engine.statistics().waiting) == (0, 0)

    converse(talk)


def test_cancelled_requests_free_their_places(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        before = engine.statistics()
        async with anyio.create_task_group() as tasks:
            for index in range(60):
                tasks.start_soon(engine.generate, thinking(engine, OTHERS[index % 8], max_tokens=400, stop_ids=(), seed=index))
            await engine.generate(thinking(engine, max_tokens=1, priority=-1))
            tasks.cancel_scope.cancel()
        answer = await engine.generate(thinking(engine, n=8, max_tokens=5))
        assert len(answer.candidates) == 8
        after = engine.statistics()
        assert (after.running, after.waiting) == (0, 0)
        assert after.requests < before.requests + 60

    converse(talk)


def test_tokens_are_counted_while_they_are_written(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        before = engine.statistics()
        if before.written_tokens is None:
            assert engine.statistics().plus(before, -1).written_tokens is None
            return
        answers = await ask_all(engine, [thinking(engine, problem, n=3, max_tokens=5) for problem in OTHERS])
        written = engine.statistics().plus(before, -1).written_tokens
        assert written == sum(answer.usage.output_tokens for answer in answers)

    converse(talk)


def test_usage_and_statistics_add_up(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        before = engine.statistics()
        answers = await ask_all(engine, [thinking(engine, problem, n=2) for problem in OTHERS])
        after = engine.statistics()
        assert after.requests - before.requests == len(OTHERS)
        for name in ("input_tokens", "cached_input_tokens", "output_tokens"):
            counted = (getattr(after, name) or 0) - (getattr(before, name) or 0)
            assert counted == sum(getattr(a.usage, name) or 0 for a in answers)  # a server does not say what several candidates found
        assert after.busy_s > before.busy_s
        for answer, problem in zip(answers, OTHERS, strict=True):
            assert answer.usage.input_tokens == len(prompt_of(engine, problem))
            assert sum(len(c.ids) for c in answer.candidates) <= answer.usage.output_tokens

    converse(talk)


def test_a_prompt_that_goes_on_from_another_is_in_the_prefix_cache(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        first = await engine.generate(thinking(engine, LONG, n=3, affinity="chain"))
        longer = [*prompt_of(engine, LONG), *first.candidates[1].ids]
        second = await engine.generate(thinking(engine, prompt_ids=longer, affinity="chain"))
        cached = second.usage.cached_input_tokens
        assert first.usage.input_tokens - LARGEST_BLOCK_TOKENS < cached < second.usage.input_tokens

    converse(talk)


def test_nothing_counts_as_seen_once_the_engine_forgot(converse: Converse) -> None:
    servers: list[str] = []

    async def talk(engine: Engine) -> None:
        if not isinstance(engine, PrefixCacheReset):
            servers.append(engine.role)
            return
        request = thinking(engine, LONG)
        first, again = await engine.generate(request), await engine.generate(request)
        assert again.usage.cached_input_tokens > 0
        await engine.reset_prefix_cache()
        after = await engine.generate(request)
        assert after.usage.cached_input_tokens == 0
        check_alike(engine, ids_of(again, after), ids_of(first) * 2)

    converse(talk)
    if servers:
        pytest.skip("a server keeps its cache")


def test_what_candidates_of_one_request_share_was_not_cached_before_it(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        for name in range(4):  # another prompt each time: a server keeps its cache
            cold = await engine.generate(
                thinking(engine, f"Problem {7 + name} of {name}. {LONG}", n=4, temperature=1.5, seed=name, max_tokens=40)
            )
            prefix = len(prompt_of(engine, "")) + LARGEST_BLOCK_TOKENS  # of the template, which all prompts begin with
            assert (cold.usage.cached_input_tokens or 0) < prefix

    converse(talk)


def test_timing_is_consistent(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        timing = (await engine.generate(thinking(engine))).timing
        for part in (timing.queue_time_s, timing.prefill_time_s, timing.decode_time_s, timing.time_to_first_token_s):
            assert part is None or part >= 0
        if None not in (timing.queue_time_s, timing.prefill_time_s, timing.time_to_first_token_s):
            assert timing.time_to_first_token_s == pytest.approx(timing.queue_time_s + timing.prefill_time_s)  # type: ignore[operator]

    converse(talk)


FACTS: dict[str, type] = {
    "answers": str,
    "devices": tuple,
    "device_model": str,
    "accelerators": int,
    "cores": int,
    "flops_per_s": float,
    "servers": tuple,
    "replay": str,
    "kv_cache_tokens": int,
    "kv_cache_sequences": int,
    "block_size": int,
    "batch_invariant": bool,
}


def test_facts_mean_the_same_for_every_engine(converse: Converse) -> None:
    async def talk(engine: Engine) -> None:
        known = {name: engine.facts[name] for name in FACTS.keys() & engine.facts.keys()}
        assert known == {name: fact for name, fact in known.items() if isinstance(fact, FACTS[name])}
        assert engine.facts.get("answers", "model") in ("model", "simulated", "recorded")
        assert msgspec.json.decode(msgspec.json.encode(engine.facts), type=dict[str, Fact]) == engine.facts

    converse(talk)
