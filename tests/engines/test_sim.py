"""The simulated engine on virtual time: what requests cost, to the bit.

The device's figures are powers of two: a token costs 2**-10 s of arithmetic, an iteration 2**-7 s for the weights plus
2**-13 s for every token of context that is read, and 2**-9 s of overhead.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import takewhile
from statistics import fmean
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from pipeline.engine import Completion, Engine, Request
from pipeline.engines.sim.engine import open_sim
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec, SimSpeculativeSpec
from pipeline.engines.sim.speculation import SpeculationMeter, acceptances, draws, iterations_of
from pipeline.errors import EngineDead, GraphError, RequestRefused
from pipeline.tasks import gather

pytestmark = pytest.mark.anyio
DEVICE = SimDeviceSpec(name="d", flops_per_s=2.0**21, bytes_per_s=2.0**18, overhead_s=2.0**-9)


def spec(**fields: Any) -> SimSpec:
    defaults: dict[str, Any] = {"model": "m", "device": DEVICE, "parameters": 2.0**10, "kv_bytes_per_token": 32.0}
    return SimSpec(**{**defaults, "max_num_seqs": 8, "max_num_batched_tokens": 16, "kv_cache_tokens": 1000, **fields})


def iteration(tokens: int, reads: int) -> float:
    return max(tokens * 2.0**-10, 2.0**-7 + reads * 2.0**-13) + 2.0**-9


def decoding(prompt: int, iterations: int) -> float:
    """`iterations` of one sequence after its first token."""
    return sum(iteration(1, prompt + i) for i in range(1, iterations + 1))


def prompt(length: int, letter: str = "a") -> tuple[int, ...]:
    """Ids that follow no chat template: the engine answers with text without an end."""
    return (1 << 24 | ord(letter),) * length


def request(letter: str, length: int, tokens: int, **fields: Any) -> Request:
    return Request(request_id=letter, prompt_ids=prompt(length, letter), max_tokens=tokens, **fields)


@asynccontextmanager
async def opened(**fields: Any) -> AsyncIterator[Engine]:
    async with open_sim({"target": spec(**fields)}) as engines:
        yield engines["target"]


async def run(engine: Engine, *timed: tuple[float, Request]) -> list[tuple[float, Completion]]:
    """Send each request at its time; when each ended, and with what."""

    async def send(at: float, request: Request) -> tuple[float, Completion]:
        await anyio.sleep_until(at)
        completion = await engine.generate(request)
        return anyio.current_time(), completion

    return await gather([partial(send, at, each) for at, each in timed])


async def test_one_request_costs_its_prefill_and_one_iteration_for_every_further_token() -> None:
    async with opened() as engine:
        [(end, completion)] = await run(engine, (1.0, request("a", 8, 5)))
        first = 1.0 + iteration(8, 8)
        assert end == first + decoding(8, 4)
        timing = completion.timing
        assert (timing.queue_time_s, timing.prefill_time_s, timing.decode_time_s) == (0.0, first - 1.0, end - first)
        assert timing.time_to_first_token_s == first - 1.0
        assert engine.statistics().busy_s == end - 1.0
        assert completion.usage.output_tokens == 5


async def test_a_prompt_that_goes_on_from_an_earlier_one_is_prefilled_from_there() -> None:
    async with opened() as engine:
        [(_, before)] = await run(engine, (0.0, request("a", 12, 4)))
        longer = Request(request_id="b", prompt_ids=(*prompt(12), *before.candidates[0].ids, *prompt(2, "z")), max_tokens=1)
        [(end, after)] = await run(engine, (1.0, longer))
        # The last sampled token was never put in: 12 + 3 are cached, 1 + 2 are new.
        assert after.usage.cached_input_tokens == 15
        assert end == 1.0 + iteration(3, 18)
        [(_, again)] = await run(engine, (2.0, longer))
        assert again.usage.cached_input_tokens == 17


async def test_what_was_not_used_for_longest_leaves_the_full_cache() -> None:
    async with opened(kv_cache_tokens=30) as engine:
        cached = []
        for at, letter in enumerate("abacb"):
            [(_, completion)] = await run(engine, (float(at), request(letter, 12, 1)))
            cached.append(completion.usage.cached_input_tokens)
        assert cached == [0, 0, 11, 0, 0]


async def test_engines_that_name_one_device_share_it_and_those_that_name_two_do_not() -> None:
    alone, other = iteration(8, 8) + decoding(8, 4), structs.replace(DEVICE, name="other")
    for device, factor in ((DEVICE, 2), (other, 1)):
        async with open_sim({"draft": spec(), "target": spec(device=device)}) as engines:
            began = anyio.current_time()
            async with anyio.create_task_group() as tasks:
                for engine in engines.values():
                    tasks.start_soon(engine.generate, request("a", 8, 5))
            assert anyio.current_time() - began == factor * alone
            assert {engine.statistics().busy_s for engine in engines.values()} == {factor * alone}


async def test_requests_wait_for_room_in_the_cache() -> None:
    async with opened(kv_cache_tokens=20) as engine:
        (end, _), (_, late) = await run(engine, (0.0, request("a", 10, 3)), (0.001, request("b", 10, 1)))
        assert late.timing.queue_time_s == end - 0.001
        with pytest.raises(RequestRefused, match="kv_cache_tokens is 20"):
            await engine.generate(request("c", 19, 2))


async def test_a_cancelled_request_leaves_with_the_iteration_under_way() -> None:
    async with opened(max_num_seqs=1) as engine:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, engine, (0.001, request("b", 8, 1)))
            with anyio.move_on_at(0.012):
                await engine.generate(request("a", 8, 100))
            assert anyio.current_time() == 0.012
        assert anyio.current_time() == iteration(8, 8) + iteration(1, 9) + iteration(8, 8)


async def test_a_closed_engine_is_dead() -> None:
    async with opened() as engine:
        with pytest.RaisesGroup(EngineDead):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(engine.generate, request("a", 8, 100))
                await anyio.sleep(0.001)
                await engine.aclose()
        with pytest.raises(EngineDead):
            await engine.generate(request("a", 8, 1))


@pytest.mark.parametrize(
    ("specs", "where"),
    [
        (
            {"draft": spec(), "target": spec(device=SimDeviceSpec(name="d", flops_per_s=1, bytes_per_s=1))},
            r"engine 'target': device\.flops_per_s: is 1, but",
        ),
        ({"target": spec(max_num_seqs=17)}, r"\$\.target\.max_num_batched_tokens"),
        (
            {"target": spec(speculative=SimSpeculativeSpec(num_speculative_tokens=8, acceptance=0.5))},
            "is 16; max_num_seqs = 8 sequences need 72 tokens in an iteration",
        ),
    ],
)
async def test_specs_that_cannot_work_are_told_before_anything_starts(specs: Mapping[str, SimSpec], where: str) -> None:
    with pytest.raises(GraphError, match=where):
        async with open_sim(specs):
            pass


# Token-level speculation.


def asked(number: int = 0, **fields: Any) -> Request:
    return Request(request_id=f"r{number}", prompt_ids=prompt(4), max_tokens=40, **fields)


def one_by_one(drawn: list[float], rates: list[float]) -> tuple[list[int], list[int]]:
    """Accepted tokens and all tokens of each iteration, as speculative decoding is described."""
    accepted: list[int] = []
    tokens: list[int] = []
    while left := drawn[sum(tokens) :]:
        accepted.append(sum(1 for _ in takewhile(lambda pair: pair[0] < pair[1], zip(left, rates, strict=False))))
        tokens.append(min(accepted[-1] + 1, len(left)))
    return accepted, tokens


@given(
    st.integers(1, 8),
    st.floats(0, 1) | st.lists(st.floats(0, 1), min_size=1, max_size=4).map(tuple),
    st.sampled_from([0.0, 0.5]),
    st.integers(1, 60),
    st.integers(0, 5),
)
def test_a_candidate_is_written_as_speculative_decoding_is_described(
    k: int, acceptance: float | tuple[float, ...], sigma: float, length: int, candidate: int
) -> None:
    inner = SimSpeculativeSpec(num_speculative_tokens=k, acceptance=acceptance, acceptance_sigma=sigma)
    progress = iterations_of(inner, asked(), candidate, length)
    rates = acceptances(inner, asked(), candidate)
    if not sigma:
        by_position = acceptance if isinstance(acceptance, tuple) else (acceptance,)
        assert rates == [by_position[min(position, len(by_position) - 1)] for position in range(k)]
    accepted, tokens = one_by_one(draws(asked(), candidate, length - 1).tolist(), rates)
    assert (progress.accepted, progress.iterations) == (accepted, 1 + len(tokens))
    assert progress.rate == pytest.approx(fmean(tokens) if tokens else 1, abs=1e-6)


def test_candidates_differ_by_the_stated_deviation_and_are_in_the_middle_what_is_said() -> None:
    inner = SimSpeculativeSpec(num_speculative_tokens=3, acceptance=(0.8, 0.6), acceptance_sigma=0.4)
    found = np.array([acceptances(inner, asked(number), 0) for number in range(2000)])
    assert np.median(found, axis=0) == pytest.approx([0.8, 0.6, 0.6], abs=0.01)
    assert np.log(found / (1 - found)).std(axis=0) == pytest.approx([0.4] * 3, rel=0.05)


def test_what_is_accepted_is_counted_by_position() -> None:
    inner = SimSpeculativeSpec(num_speculative_tokens=3, acceptance=1.0)
    meter = SpeculationMeter(inner)
    meter.count(iterations_of(inner, asked(), candidate, length) for candidate, length in enumerate((11, 1)))
    found = meter.totals()  # 1, then 4, 4 and 2 tokens
    assert (found.drafts, found.draft_tokens, found.accepted_tokens, found.accepted_by_position) == (3, 9, 8, (3, 3, 2))


async def said(inner: SimSpeculativeSpec | None, requests: list[Request]) -> tuple[list[Completion], Any]:
    """Answers and statistics of an engine whose iteration takes 2**-7 s for the weights, and 2**-10 s a token if that is more."""
    async with opened(speculative=inner, kv_bytes_per_token=0.0, max_num_batched_tokens=64, kv_cache_tokens=10_000) as engine:
        return [await engine.generate(request) for request in requests], engine.statistics()


async def test_speculation_changes_the_time_and_no_text() -> None:
    requests = [asked(number, n=3, temperature=1.0, seed=number) for number in range(8)]
    inner = SimSpeculativeSpec(num_speculative_tokens=4, acceptance=0.6)
    (plain, before), (faster, after) = [await said(each, requests) for each in (None, inner)]
    assert [one.candidates for one in plain] == [one.candidates for one in faster]
    assert all((a.timing.decode_time_s or 0) > (b.timing.decode_time_s or 0) for a, b in zip(plain, faster, strict=True))
    assert before.speculation is None
    assert before.output_tokens == after.output_tokens == 8 * 3 * 40
    assert after.speculation.drafts + after.speculation.accepted_tokens >= 8 * 3 * 39
    assert after.speculation.accepted_tokens / after.speculation.drafts == pytest.approx(0.6 * (1 - 0.6**4) / 0.4, rel=0.2)


@pytest.mark.parametrize(
    ("draft", "decode_s"),
    [
        ({}, 8 * (2.0**-7 + 2.0**-9)),  # 39 tokens, 5 in an iteration
        ({"parameters": 2.0**7, "overhead_s": 2.0**-11}, 8 * (2.0**-7 + 2.0**-9 + 4 * (2.0**-10 + 2.0**-11))),
        ({"verification_s": 2.0**-10}, 8 * (2.0**-7 + 2.0**-9 + 2.0**-10)),
        ({"overlap": 0.75}, 8 * (2.0**-7 + 2.0**-9 + 2.0**-10)),  # a fourth of the arithmetic of four tokens comes on top
        ({"overlap": 0.5, "proposed_share": 0.5}, 8 * (2.0**-7 + 2.0**-9 + 2.0**-10)),  # half of that of two
    ],
)
async def test_an_iteration_costs_a_verification_and_its_proposals(draft: dict[str, float], decode_s: float) -> None:
    inner = SimSpeculativeSpec(num_speculative_tokens=4, acceptance=1.0, **draft)
    [answer], _ = await said(inner, [asked()])
    assert answer.timing.decode_time_s == decode_s
