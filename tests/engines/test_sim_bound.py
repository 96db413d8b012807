"""The bound of simulated devices: no run of the calls is faster, and one call at a time is exactly as fast."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.engine import Candidate, Completion, Request, Usage
from pipeline.engines.sim.device import Share, SimDevice
from pipeline.engines.sim.scheduler import Job, Scheduler
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec
from tests.support.bound import AnsweredCall, least_s, work_of


def spec(sharing: str = "time_slices", **fields: Any) -> SimSpec:
    device = SimDeviceSpec(name="d", flops_per_s=2.0**21, bytes_per_s=2.0**18, overhead_s=2.0**-9, sharing=sharing)  # type: ignore[arg-type]
    known: dict[str, Any] = {"model": "m", "device": device, "parameters": 2.0**10, "kv_bytes_per_token": 32.0}
    return SimSpec(**{**known, "max_num_seqs": 6, "max_num_batched_tokens": 16, "kv_cache_tokens": 10_000, **fields})


class Order:
    """A call of a test: its engine, arrival, prompt and lengths; how it went is in `job`."""

    def __init__(self, number: int, engine: str, arrival: float, prompt: tuple[int, ...], lengths: tuple[int, ...]) -> None:
        self.engine, self.arrival, self.prompt, self.lengths = engine, arrival, prompt, lengths
        self.outputs = tuple(tuple(range(1000 * number, 1000 * number + length)) for length in lengths)
        kept = tuple(output[:-1] for output in self.outputs)
        self.job = Job((0, arrival, str(number), number), prompt, len(prompt) - 1, lengths, kept, lambda: None)

    def __repr__(self) -> str:
        return f"{self.engine} at {self.arrival}: {self.prompt} -> {self.lengths}"

    @property
    def answered(self) -> AnsweredCall:
        candidates = tuple(Candidate(ids=ids, text="", cumulative_logprob=None, finish_reason="length") for ids in self.outputs)
        usage = Usage(input_tokens=len(self.prompt), cached_input_tokens=self.job.cached, output_tokens=sum(self.lengths))
        request = Request(request_id="r", prompt_ids=self.prompt, max_tokens=99, n=len(self.lengths))
        return AnsweredCall(request=request, completion=Completion(candidates=candidates, usage=usage))


def run(specs: dict[str, SimSpec], orders: list[Order]) -> float:
    """Compute the orders; the time at which the last one is finished, if the first one arrives at 0."""
    device = SimDevice(next(iter(specs.values())).device)
    shares: dict[str, Share] = {role: device.join(Scheduler(each)) for role, each in specs.items()}
    for moment in [*sorted({order.arrival for order in orders}), math.inf]:
        while (event := device.next_event()) < moment:
            device.advance(event)
        for order in orders:
            if order.arrival == moment:
                device.add(shares[order.engine], order.job, moment)
    return max(order.job.finished for order in orders) - min(order.arrival for order in orders)


def bound(specs: dict[str, SimSpec], orders: list[Order], sequences: int = 6) -> float:
    calls = {role: [order.answered for order in orders if order.engine == role] for role in specs}
    return least_s(specs, calls, dict.fromkeys(specs, sequences))["d"]


@st.composite
def workloads(draw: st.DrawFn) -> list[Order]:
    return [
        Order(
            number,
            draw(st.sampled_from(["draft", "target"])),
            draw(st.integers(0, 60)) * 2.0**-8,
            (*range(draw(st.integers(0, 30))), 900 + draw(st.integers(0, 3))),
            tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=4))),
        )
        for number in range(1, draw(st.integers(2, 12)))
    ]


@settings(deadline=None, max_examples=30)
@given(workloads(), st.sampled_from(["time_slices", "mps"]), st.sampled_from([0.0, 32.0, 4096.0]), st.sampled_from([80, 10_000]))
def test_no_run_is_faster_than_its_bound(orders: list[Order], sharing: str, kv_bytes: float, room: int) -> None:
    specs = {
        "draft": spec(sharing, parameters=2.0**9),
        "target": spec(sharing, kv_bytes_per_token=kv_bytes, kv_cache_tokens=room),
    }
    assert bound(specs, orders) <= run(specs, orders) * (1 + 1e-9)


def in_turn(specs: dict[str, SimSpec], calls: list[tuple[str, tuple[int, ...], int]]) -> tuple[list[Order], float]:
    """Calls of which each is sent when the one before is finished, and the time that they take."""
    orders: list[Order] = []
    total = 0.0
    for number, (engine, prompt, length) in enumerate(calls):
        orders.append(Order(number, engine, total, prompt, (length,)))
        total = run(specs, orders)
        for order in orders:
            order.job = Order(0, order.engine, order.arrival, order.prompt, order.lengths).job
    orders = [Order(number, order.engine, order.arrival, order.prompt, order.lengths) for number, order in enumerate(orders)]
    return orders, run(specs, orders)


@pytest.mark.parametrize("chunk", [16, 7, 1000])
def test_one_call_after_the_other_takes_just_as_long_as_the_bound(chunk: int) -> None:
    """Prompts in chunks, one within another, and so long that arithmetic takes longer than the weights."""
    specs = {"target": spec(max_num_batched_tokens=chunk)}
    calls = [("target", tuple(range(40)), 9), ("target", tuple(range(60)), 1), ("target", (7, 8, 9), 30)]
    orders, seconds = in_turn(specs, calls)
    assert seconds == pytest.approx(bound(specs, orders, sequences=1), rel=1e-12)


def test_what_shares_an_iteration_reads_the_weights_once() -> None:
    one = spec(kv_bytes_per_token=0.0)
    weights_s, overhead_s = 2.0**11 / 2.0**18, 2.0**-9
    calls = [Order(number, "target", 0.0, (number,), (8,)).answered for number in range(6)]
    assert work_of(one, calls, 1).least == 48 * (weights_s + overhead_s)
    assert work_of(one, calls, 6).least == 8 * (weights_s + overhead_s)
    assert work_of(one, calls, 4).least == 12 * (weights_s + overhead_s)


def test_a_prompt_counts_from_where_it_differs_from_all_earlier_ones() -> None:
    """Although nothing of it was in the cache, as after an eviction."""
    first, second = Order(1, "target", 0.0, tuple(range(100)), (1,)), Order(2, "target", 0.0, (*range(100), 5, 6), (1,))
    assert work_of(spec(), [first.answered, second.answered], 1).compute == 102 * 2.0**-10


def test_engines_take_turns_or_share_bandwidth_and_leave_overhead_out() -> None:
    orders = [Order(1, "draft", 0.0, (1,), (4,)), Order(2, "target", 0.0, (2,), (8,))]
    slices = {role: spec(kv_bytes_per_token=0.0) for role in ("draft", "target")}
    mps = {role: spec("mps", kv_bytes_per_token=0.0) for role in ("draft", "target")}
    weights_s, overhead_s = 2.0**11 / 2.0**18, 2.0**-9
    assert bound(slices, orders) == 12 * (weights_s + overhead_s)
    assert bound(mps, orders) == 12 * weights_s
    assert bound(mps, orders[1:]) == bound(slices, orders[1:]) == 8 * (weights_s + overhead_s)
