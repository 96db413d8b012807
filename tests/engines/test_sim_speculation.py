"""Token-level speculation of a simulated engine: what is accepted, what it costs, and that it changes no text."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine import Completion, Request
from pipeline.engines.sim.engine import open_sim
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec, SimSpeculativeSpec
from pipeline.engines.sim.speculation import SpeculationMeter, acceptances, draws, iterations_of
from pipeline.errors import GraphError

DEVICE = SimDeviceSpec(name="d", flops_per_s=2.0**21, bytes_per_s=2.0**18, overhead_s=2.0**-9)
"""An iteration of `spec()` takes 2**-7 s for the weights and 2**-9 s of overhead; 2**-10 s a token if that is more."""


def spec(**fields: Any) -> SimSpec:
    defaults: dict[str, Any] = {"model": "m", "device": DEVICE, "parameters": 2.0**10, "kv_bytes_per_token": 0.0}
    return SimSpec(**{**defaults, "max_num_seqs": 8, "max_num_batched_tokens": 64, "kv_cache_tokens": 10_000, **fields})


def asked(number: int = 0, **fields: Any) -> Request:
    return Request(**{"request_id": f"r{number}", "prompt_ids": (1 << 24 | ord("a"),) * 4, "max_tokens": 40, **fields})


def one_by_one(drawn: list[float], rates: list[float]) -> list[tuple[int, int]]:
    """Tokens and accepted tokens of each iteration, as speculative decoding is described."""
    found, at = [], 0
    while at < len(drawn):
        accepted = 0
        while accepted < len(rates) and at + accepted < len(drawn) and drawn[at + accepted] < rates[accepted]:
            accepted += 1
        tokens = min(accepted + 1, len(drawn) - at)
        found.append((tokens, accepted))
        at += tokens
    return found


probabilities = st.floats(0, 1)


@given(
    st.integers(1, 8),
    probabilities | st.lists(probabilities, min_size=1, max_size=4).map(tuple),
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
    assert progress.tokens[0] == 1
    assert list(zip(np.diff(progress.tokens), progress.accepted, strict=True)) == one_by_one(
        draws(asked(), candidate, length - 1).tolist(), rates
    )


def test_tokens_of_an_iteration_are_on_average_what_the_formula_says() -> None:
    for k, acceptance in ((5, 0.7), (3, 0.9), (1, 0.5)):
        inner = SimSpeculativeSpec(num_speculative_tokens=k, acceptance=acceptance)
        mean = 200_000 / iterations_of(inner, asked(), 0, 200_000).iterations
        assert mean == pytest.approx((1 - acceptance ** (k + 1)) / (1 - acceptance), rel=0.01)


def test_candidates_differ_by_the_stated_deviation_and_are_in_the_middle_what_is_said() -> None:
    inner = SimSpeculativeSpec(num_speculative_tokens=3, acceptance=(0.8, 0.6), acceptance_sigma=0.4)
    found = np.array([acceptances(inner, asked(number), 0) for number in range(2000)])
    assert np.median(found, axis=0) == pytest.approx([0.8, 0.6, 0.6], abs=0.01)
    assert np.log(found / (1 - found)).std(axis=0) == pytest.approx([0.4] * 3, rel=0.05)


def test_what_is_accepted_is_counted_by_position() -> None:
    inner, meter = SimSpeculativeSpec(num_speculative_tokens=3, acceptance=1.0), SpeculationMeter(3)
    progress = [iterations_of(inner, asked(), candidate, length) for candidate, length in enumerate((11, 1))]
    meter.count(progress)
    found = meter.totals()  # 1, then 4, 4 and 2 tokens
    assert (found.drafts, found.draft_tokens, found.accepted_tokens, found.accepted_by_position) == (3, 9, 8, (3, 3, 2))


async def said(role: SimSpec, requests: list[Request]) -> tuple[list[Completion], Any]:
    async with open_sim({"target": role}) as engines:
        return [await engines["target"].generate(request) for request in requests], engines["target"].statistics()


@pytest.mark.anyio
async def test_speculation_changes_the_time_and_no_text() -> None:
    requests = [asked(number, n=3, temperature=1.0, seed=number) for number in range(8)]
    inner = SimSpeculativeSpec(num_speculative_tokens=4, acceptance=0.6)
    (plain, before), (faster, after) = [await said(spec(speculative=each), requests) for each in (None, inner)]
    assert [one.candidates for one in plain] == [one.candidates for one in faster]
    assert all((a.timing.decode_time_s or 0) > (b.timing.decode_time_s or 0) for a, b in zip(plain, faster, strict=True))
    assert before.speculation is None
    assert before.output_tokens == after.output_tokens == 8 * 3 * 40
    assert after.speculation.drafts + after.speculation.accepted_tokens >= 8 * 3 * 39
    assert after.speculation.accepted_tokens / after.speculation.drafts == pytest.approx(0.6 * (1 - 0.6**4) / 0.4, rel=0.2)


@pytest.mark.anyio
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
    [answer], _ = await said(spec(speculative=inner), [asked()])
    assert answer.timing.decode_time_s == decode_s


@pytest.mark.anyio
async def test_verified_tokens_fill_the_multipliers() -> None:
    """Eight sequences of five positions take 40 * 2**-10 s, more than the weights."""
    inner = SimSpeculativeSpec(num_speculative_tokens=4, acceptance=1.0)
    [answer], _ = await said(spec(speculative=inner), [asked(n=8)])
    assert answer.timing.decode_time_s == 8 * (40 * 2.0**-10 + 2.0**-9)


@pytest.mark.anyio
async def test_an_iteration_must_hold_what_is_verified_together() -> None:
    inner = SimSpeculativeSpec(num_speculative_tokens=8, acceptance=0.5)
    with pytest.raises(
        GraphError, match=r"64 is less than max_num_seqs x \(num_speculative_tokens \+ 1\), 72; that many tokens are verified"
    ):
        await said(spec(speculative=inner), [])
