"""The event-jumping scheduler against a plain simulation that computes every iteration, in exact fractions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine import Request
from pipeline.engines.sim.device import SimDevice
from pipeline.engines.sim.roofline import BatchCost
from pipeline.engines.sim.scheduler import Job, Scheduler
from pipeline.engines.sim.sharing import waits
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec, SimSpeculativeSpec
from pipeline.engines.sim.speculation import CandidateIterations, iterations_of
from pipeline.system.ageing_queue import OLDEST_EVERY

# Powers of two, so that floats are exact and results can be compared with ==.
DEVICE = SimDeviceSpec(name="d", flops_per_s=2.0**21, bytes_per_s=2.0**18, overhead_s=2.0**-9)


CANCELLED = (-1.0, -1.0, -1.0)


def spec(**fields: Any) -> SimSpec:
    defaults: dict[str, Any] = {"model": "m", "device": DEVICE, "parameters": 2.0**10, "kv_bytes_per_token": 32.0}
    return SimSpec(**{**defaults, "max_num_seqs": 6, "max_num_batched_tokens": 16, "kv_cache_tokens": 10_000, **fields})


@dataclass(eq=False)
class Order:
    """One request of a test, with what came of it: scheduled, first token, finished."""

    engine: int
    arrival: float
    prompt: int
    lengths: tuple[int, ...]
    priority: int = 0
    patience: float = math.inf
    number: int = 0
    moments: tuple[float, ...] | None = None
    left: int = 0
    rest: Sequence[tuple[int, Fraction]] = ()
    """While it runs, prompt tokens left, and of each sequence iterations left and the tokens that it reads in the next one."""
    times: tuple[float, ...] = ()

    @property
    def key(self) -> tuple[int, float, str, int]:
        return (self.priority, self.arrival, str(self.number), self.number)

    @property
    def cancel(self) -> float:
        return self.arrival + self.patience

    @property
    def need(self) -> int:
        return self.prompt + sum(self.lengths)

    def progress(self, spec: SimSpec) -> tuple[CandidateIterations, ...]:
        request = Request(request_id=str(self.number), prompt_ids=(1,), max_tokens=1)
        inner = spec.speculative
        return tuple(iterations_of(inner, request, each, length) for each, length in enumerate(self.lengths)) if inner else ()


class PlainEngine:
    """Continuous batching as it is described, one iteration at a time."""

    def __init__(self, spec: SimSpec) -> None:
        self.spec, self.admissions = spec, 0
        self.waiting: list[Order] = []
        self.running: list[Order] = []
        self.chunks: list[tuple[Order, int]] = []
        self.work: Fraction | None = None

    def start(self, now: Fraction) -> None:
        spec, inner = self.spec, self.spec.speculative
        k = inner.num_speculative_tokens if inner else 0
        self.running = [order for order in self.running if order.moments is None]
        contexts = [context for order in self.running for left, context in order.rest if left > 0]
        size = sequences = len(contexts)
        budget, self.chunks = spec.max_num_batched_tokens - size * (k + 1), []
        while budget > 0 and (order := next((each for each in self.running if each.left), None) or self.admitted(sequences, now)):
            count = min(order.left, budget)
            order.left -= count
            self.chunks.append((order, count))
            budget, sequences = budget - count, sequences + len(order.lengths)
        if not size and not self.chunks:
            return
        asked = sum(order.prompt - order.left for order, _ in self.chunks)
        tokens = sum(count for _, count in self.chunks)
        self.work = self.took(spec, size * (k + 1) + tokens, sum(contexts) + size * k + asked) + Fraction(spec.device.overhead_s)
        for number in range(k if inner else 0):
            more = (tokens, asked) if number == 0 else (0, 0)
            if size + more[0]:
                self.work += self.took(inner, size + more[0], sum(contexts) + more[1]) + Fraction(inner.overhead_s)

    def admitted(self, sequences: int, now: Fraction) -> Order | None:
        if not self.waiting:
            return None
        ages = self.admissions % OLDEST_EVERY == OLDEST_EVERY - 1
        order = min(self.waiting, key=lambda each: (each.arrival, each.number) if ages else each.key)
        if sequences + len(order.lengths) > self.spec.max_num_seqs:
            return None
        if sum(each.need for each in [*self.running, order]) > self.spec.kv_cache_tokens:
            return None
        self.waiting.remove(order)
        self.running.append(order)
        self.admissions += 1
        order.left, order.times = order.prompt, (float(now),)
        return order

    def took(self, model: Any, tokens: int, reads: Fraction) -> Fraction:
        arithmetic = Fraction(2 * model.parameters) * tokens / Fraction(self.spec.device.flops_per_s)
        weights = Fraction(model.parameters * model.bytes_per_parameter)
        memory = (weights + Fraction(model.kv_bytes_per_token) * reads) / Fraction(self.spec.device.bytes_per_s)
        return max(arithmetic, memory)

    def end(self, now: Fraction) -> None:
        self.work = None
        for order in self.running:
            rates = [each.rate for each in order.progress(self.spec)] or [1] * len(order.lengths)
            order.rest = [(left - 1, context + Fraction(rate)) for (left, context), rate in zip(order.rest, rates, strict=False)]
        for order, _ in self.chunks:
            if not order.left:
                order.times += (float(now),)
                counts = [each.iterations for each in order.progress(self.spec)] or order.lengths
                order.rest = [(count - 1, Fraction(order.prompt + 1)) for count in counts]
        for order in self.running:
            if order.rest and order.moments is None and all(left <= 0 for left, _ in order.rest):
                order.moments = (*order.times, float(now))

    def cancel(self, order: Order) -> None:
        if order in self.waiting:
            self.waiting.remove(order)
        order.moments = CANCELLED


def plain(specs: Sequence[SimSpec], orders: Sequence[Order]) -> None:
    """Every iteration of every engine; while k engines are busy work takes k times as long."""
    engines, now = [PlainEngine(spec) for spec in specs], Fraction(0)
    changes = sorted({Fraction(at) for order in orders for at in (order.arrival, order.cancel) if at < math.inf})
    while True:
        for engine in engines:
            if engine.work == 0:
                engine.end(now)
        for order in orders:
            if order.arrival == now:
                engines[order.engine].waiting.append(order)
            if order.cancel == now and order.moments is None:
                engines[order.engine].cancel(order)
        for engine in engines:
            if engine.work is None:
                engine.start(now)
        busy = [engine for engine in engines if engine.work is not None]
        steps = [engine.work * len(busy) for engine in busy] + [change - now for change in changes if change > now][:1]
        if not steps:
            return
        for engine in busy:
            engine.work -= min(steps) / len(busy)
        now += min(steps)


def advance(device: SimDevice, until: float = math.inf) -> None:
    while (event := device.next_event()) < until:
        device.advance(event)


def jumping(specs: Sequence[SimSpec], orders: Sequence[Order], looks: Sequence[float] = ()) -> dict[int, tuple[float, ...]]:
    """The same orders through the scheduler of a device that is also looked at, at the times `looks`."""
    device = SimDevice(specs[0].device)
    shares = [device.join(Scheduler(spec)) for spec in specs]
    jobs: dict[int, Job] = {}
    moments = {order.arrival for order in orders} | {order.cancel for order in orders} | {*looks}
    for moment in [*sorted(moments - {math.inf}), math.inf]:
        advance(device, moment)
        if moment in looks:
            device.advance(moment)
        for order in orders:
            if order.arrival == moment:
                prompt = (order.number,) * order.prompt
                keeps = tuple((candidate,) * (length - 1) for candidate, length in enumerate(order.lengths))
                progress = order.progress(specs[order.engine])
                jobs[order.number] = Job(order.key, prompt, order.prompt - 1, order.lengths, keeps, lambda: None, progress)
                device.add(shares[order.engine], jobs[order.number], moment)
            if order.cancel == moment:
                device.drop(shares[order.engine], jobs[order.number], moment)
    for share in shares:
        scheduler = share.scheduler
        assert (scheduler.needs_decision, scheduler.end, scheduler.cache.reserved) == (False, math.inf, 0)
        assert scheduler.cache.cached <= scheduler.cache.capacity
    return {number: (job.scheduled, job.first_token, job.finished) if not job.cancelled else CANCELLED for number, job in jobs.items()}


grid = st.integers(0, 200).map(lambda ticks: ticks * 2.0**-8)
lengths = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple)
patience = st.sampled_from([math.inf, math.inf, 0.0, 0.03125, 0.109375])
order_of = st.builds(Order, st.integers(0, 1), grid, st.integers(1, 40), lengths, st.integers(0, 1), patience)
workloads = st.lists(order_of, min_size=1, max_size=20)
inner = st.builds(
    SimSpeculativeSpec,
    num_speculative_tokens=st.sampled_from([1, 3]),
    acceptance=st.sampled_from([0.0, 0.5, 1.0]),
    parameters=st.sampled_from([0.0, 2.0**7]),
    kv_bytes_per_token=st.just(8.0),
    overhead_s=st.just(2.0**-12),
)


@pytest.mark.slow
@given(workloads, st.sampled_from([0.0, 32.0, 4096.0]), st.sampled_from([100, 200, 10_000]), st.booleans(), st.none() | inner)
def test_jumping_equals_computing_every_iteration(
    orders: list[Order], kv_bytes: float, room: int, two: bool, inner: SimSpeculativeSpec | None
) -> None:
    first = spec(kv_bytes_per_token=kv_bytes, kv_cache_tokens=room, speculative=inner, max_num_batched_tokens=24 if inner else 16)
    specs = [first, *([spec(parameters=2.0**9)] if two else [])]
    for number, each in enumerate(orders):
        each.number, each.engine = number, each.engine % len(specs)
    plain(specs, orders)
    assert jumping(specs, orders) == {order.number: order.moments for order in orders}


def test_nobody_passes_the_oldest_while_it_waits_for_room() -> None:
    """An answer that needs half the cache, and verifications that would keep it full for ever."""
    verifications = [Order(0, number * 2.0**-8, 16, (4,), 1, number=number) for number in range(1, 200)]
    answers = [Order(0, 0.0, 60, (12,), number=200), Order(0, 0.0, 50, (10,), 9)]
    moments = jumping([spec(kv_cache_tokens=100)], [*answers, *verifications])
    started = sorted((scheduled, number) for number, (scheduled, *_) in moments.items())
    assert [number for _, number in started].index(0) == OLDEST_EVERY - 1


# Worked examples.

ONE_SECOND = spec(
    device=SimDeviceSpec(name="d", flops_per_s=math.inf, bytes_per_s=1.0), parameters=1.0, bytes_per_parameter=1.0, kv_bytes_per_token=0.0
)
"""Every iteration takes a second."""


def job(number: int, arrival: float, *lengths: int) -> Job:
    return Job((0, arrival, str(number), number), (number,) * 4, 3, lengths, tuple(() for _ in lengths), lambda: None)


def test_the_example_of_costs() -> None:
    cost = BatchCost(compute=1.5, memory=1.0, growth=0.25, overhead=0.0)
    assert [cost.duration(n) for n in range(1, 6)] == [1.5, 3.0, 4.5, 6.25, 8.25]


def test_what_arrives_while_a_real_clock_is_late_joins_no_iteration_from_before() -> None:
    device = SimDevice(ONE_SECOND.device)
    share = device.join(Scheduler(ONE_SECOND))
    first, long, second = job(1, 0.0, 3), job(2, 0.0, 9), job(3, 3.4, 2)
    device.add(share, first, 0.0)
    device.add(share, long, 0.0)
    device.advance(0.5)
    device.add(share, second, 3.4)  # the timer of 3.0, when the first one ends, has not been handled
    assert first.finished == 3.0
    advance(device)
    assert (second.scheduled, second.first_token, second.finished) == (4.0, 5.0, 6.0)


# Engines that are busy on one device at the same time: nothing is gained, nothing is lost, and looking changes nothing.


def test_short_kernels_wait_longest_and_waits_add_up() -> None:
    assert waits((4.0, 1.0), 0.5) == pytest.approx([1.125, 3.0])
    assert waits((4.0, 1.0, 1.0), 0.5) == pytest.approx([1.25, 3.5, 3.5])
    assert waits((2.0, 2.0), 1.0) == pytest.approx([2.0, 2.0])


def shared(sharing: str, *, overhead_s: float = 0.0, kv_bytes: float = 0.0, layers: int = 1) -> SimSpec:
    """An iteration reads its weights in a second."""
    device = SimDeviceSpec(
        name="d",
        flops_per_s=math.inf,
        bytes_per_s=1.0,
        overhead_s=overhead_s,
        sharing=sharing,  # type: ignore[arg-type]
    )
    return SimSpec(model="m", device=device, parameters=1.0, bytes_per_parameter=1.0, kv_bytes_per_token=kv_bytes, layers=layers)


def finished(of: Sequence[SimSpec], arrivals: Sequence[tuple[int, float, int]], looks: Sequence[float] = ()) -> list[float]:
    """When each job ends; a job is the number of an engine of `of`, its arrival and its length."""
    orders = [Order(engine, at, 4, (length,), number=number) for number, (engine, at, length) in enumerate(arrivals)]
    return [moments[-1] for _, moments in sorted(jumping(of, orders, looks).items())]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (shared("time_slices"), [7.0, 4.0]),
        (shared("time_slices", overhead_s=1.0), [14.0, 8.0]),  # whole iterations take turns
        (shared("mps"), [6.1, 3.1]),  # 0.55 of a kernel to wait for
    ],
)
def test_two_engines_that_share_a_device(of: SimSpec, expected: list[float]) -> None:
    """A long job of 5 iterations, and beside it, from the start, a short one of 2 on another engine."""
    assert finished([of, of], [(0, 0.0, 5), (1, 0.0, 2)]) == pytest.approx(expected, rel=1e-9)


arrivals_of = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 40).map(lambda ticks: ticks / 4), st.integers(1, 40)), min_size=1, max_size=8
)


@given(arrivals_of, st.lists(st.floats(0, 100), max_size=5), st.sampled_from(["mps", "time_slices"]))
def test_looking_at_a_device_changes_nothing(arrivals: list[tuple[int, float, int]], looks: list[float], sharing: str) -> None:
    of = [shared(sharing, layers=layers, overhead_s=0.25, kv_bytes=2.0**-6) for layers in (28, 64)]
    assert finished(of, arrivals, looks) == finished(of, arrivals)


@given(st.integers(1, 60), st.integers(1, 60), st.sampled_from([0.0, 2.0**-6, 0.5]), st.integers(1, 100))
def test_sharing_makes_nothing_faster_and_waiting_costs_no_more_than_turns(one: int, other: int, kv_bytes: float, layers: int) -> None:
    def ends(sharing: str) -> list[float]:
        of = [shared(sharing, overhead_s=0.25, kv_bytes=kv_bytes, layers=each) for each in (1, layers)]
        return finished(of, [(0, 0.0, one), (1, 0.0, other)])

    alone = [finished([shared("mps", overhead_s=0.25, kv_bytes=kv_bytes)], [(0, 0.0, length)])[0] for length in (one, other)]
    waiting, slices = ends("mps"), ends("time_slices")
    assert all(beside >= own * (1 - 1e-9) for beside, own in zip([*waiting, *slices], alone * 2, strict=True))
    assert max(waiting) <= max(slices) * (1 + 1e-9)
