"""How engines that are busy on one simulated device slow each other: nothing is gained, nothing is lost, and looking changes nothing."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.sim.device import SimDevice
from pipeline.engines.sim.roofline import BatchCost
from pipeline.engines.sim.scheduler import Job, Scheduler
from pipeline.engines.sim.sharing import Use, slowdowns, stretch, use_of, waits
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec

shares = st.floats(0, 1)
kernels = st.floats(1e-6, 1e-2)
uses = st.builds(
    lambda rest, bandwidth, multipliers, kernel_s: Use(rest * bandwidth, rest * multipliers, 1 - rest, kernel_s),
    *(shares, shares, shares, kernels),
)
EXAMPLE = Use(1.0, 0.0, 0.0)
"""Takes all of the bandwidth for all of its time."""


@given(st.lists(uses, min_size=1, max_size=4), st.sampled_from([0.0, 0.55, 1.0]))
def test_the_stretch_is_the_least_with_which_all_engines_fit_on_the_device(found: list[Use], wait: float) -> None:
    waiting = waits(found, wait)
    least = stretch(found, waiting)
    assert least >= 1
    if len(found) == 1:
        assert least == 1
    for resource in ("bandwidth", "multipliers"):
        assert taken(found, resource, least, waiting) <= 1 + 1e-11
    if least > 1:
        assert max(taken(found, resource, least * (1 - 1e-6), waiting) for resource in ("bandwidth", "multipliers")) > 1 - 1e-11


def taken(found: Sequence[Use], resource: str, by: float, waiting: Sequence[float]) -> float:
    return sum(getattr(use, resource) / max(use.slowdown(by), slowest) for use, slowest in zip(found, waiting, strict=True))


@given(st.lists(uses, min_size=2, max_size=4), shares)
def test_engines_that_wait_do_no_less_together_than_in_turns(found: list[Use], wait: float) -> None:
    slower = slowdowns(found, kernel_wait=wait)
    assert sum(1 / each for each in slower) >= 1 - 1e-9
    assert all(each >= least for each, least in zip(slower, waits(found, wait), strict=True))
    assert slowdowns(found[:1], kernel_wait=wait) == [1.0]


@pytest.mark.parametrize(
    ("kernels_s", "wait", "expected"),
    [
        ((2.0, 2.0), 1.0, [2.0, 2.0]),  # they alternate
        ((4.0, 1.0), 0.5, [1.125, 3.0]),
        ((4.0, 1.0, 1.0), 0.5, [1.25, 3.5, 3.5]),  # waits add up
        ((4.0, 1.0), 0.0, [1.0, 1.0]),
    ],
)
def test_short_kernels_wait_longest(kernels_s: Sequence[float], wait: float, expected: Sequence[float]) -> None:
    assert slowdowns([Use(0.0, 0.0, 0.0, each) for each in kernels_s], kernel_wait=wait) == pytest.approx(expected, rel=1e-9)


def test_who_waits_leaves_bandwidth_to_the_others() -> None:
    """The second gets a third of it because it waits, so that the first gets two thirds, where alike they would get a half each."""
    assert slowdowns([Use(1.0, 0.0, 0.0, 4.0), Use(1.0, 0.0, 0.0, 1.0)], kernel_wait=0.5) == pytest.approx([1.5, 3.0], rel=1e-9)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([EXAMPLE, EXAMPLE], 2.0),
        ([EXAMPLE] * 3, 3.0),
        ([Use(0.5, 0.0, 0.5), Use(0.5, 0.0, 0.5)], 1.0),
        ([EXAMPLE, Use(0.0, 1.0, 0.0)], 1.0),  # one is bound by memory and the other by arithmetic
        ([EXAMPLE, Use(0.25, 1.0, 0.0)], 1.25),
        ([Use(1.0, 0.0, 0.0), Use(0.5, 0.0, 0.5)], (1 + math.sqrt(5)) / 2),  # 1/s + 0.5/(0.5 + 0.5 s) = 1
        ([EXAMPLE.exclusive(), Use(0.0, 1.0, 0.0).exclusive()], 2.0),
        ([Use(0.25, 0.0, 0.5).exclusive(), Use(0.0, 0.0, 0.5).exclusive()], 1.0),
    ],
)
def test_examples_of_stretches(found: list[Use], expected: float) -> None:
    assert stretch(found) == pytest.approx(expected, rel=1e-9)


sixteenths = st.integers(0, 16).map(lambda count: count / 16)


@given(st.builds(BatchCost, sixteenths, sixteenths, sixteenths, sixteenths), st.integers(0, 20), st.integers(1, 20))
def test_the_use_of_some_iterations_is_the_greatest_of_any(cost: BatchCost, begun: int, count: int) -> None:
    found = use_of(cost, begun, begun + count)
    for iteration in range(begun, begun + count):
        seconds = cost.duration(iteration + 1) - cost.duration(iteration)
        if seconds > 1e-9:
            assert (cost.memory + iteration * cost.growth) / seconds <= found.bandwidth + 1e-6
            assert cost.compute / seconds <= found.multipliers + 1e-6
    assert 0 <= found.overhead <= 1


def spec(
    sharing: str, efficiency: float = 1.0, *, overhead_s: float = 0.0, kv_bytes: float = 0.0, wait: float = 0.0, layers: int = 1
) -> SimSpec:
    """An iteration reads its weights in a second."""
    device = SimDeviceSpec(
        name="d",
        flops_per_s=math.inf,
        bytes_per_s=1.0,
        overhead_s=overhead_s,
        sharing=sharing,  # type: ignore[arg-type]
        sharing_efficiency=efficiency,
        kernel_wait=wait if sharing == "mps" else None,
    )
    return SimSpec(model="m", device=device, parameters=1.0, bytes_per_parameter=1.0, kv_bytes_per_token=kv_bytes, layers=layers)


def job(number: int, arrival: float, *lengths: int) -> Job:
    return Job((0, arrival, str(number), number), (number,) * 4, 3, lengths, tuple(() for _ in lengths), lambda: None)


def finished(of: Sequence[SimSpec], arrivals: Sequence[tuple[int, float, int]], looks: Sequence[float] = ()) -> list[float]:
    """When each job ends; a job is the number of an engine of `of`, its arrival and its length. `looks`: times at which the device is
    looked at."""
    device = SimDevice(of[0].device)
    joined = [device.join(Scheduler(each)) for each in of]
    jobs = [job(number, at, length) for number, (_, at, length) in enumerate(arrivals)]
    for moment in [*sorted({*(at for _, at, _ in arrivals), *looks}), math.inf]:
        while (event := device.next_event()) < moment:
            device.advance(event)
        if moment in looks:
            device.advance(moment)
        for each, (engine, at, _) in zip(jobs, arrivals, strict=True):
            if at == moment:
                device.add(joined[engine], each, moment)
    return [each.finished for each in jobs]


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (spec("time_slices"), [7.0, 4.0]),
        (spec("mps"), [7.0, 4.0]),  # both need all of the bandwidth
        (spec("time_slices", overhead_s=1.0), [14.0, 8.0]),  # whole iterations take turns
        (spec("mps", overhead_s=1.0), [10.0, 4.0]),  # each needs half of the bandwidth
        (spec("time_slices", 0.5), [11.0, 8.0]),
        (spec("mps", 0.5), [11.0, 8.0]),
        (spec("mps", 0.5, overhead_s=1.0), [12.0, 6.0]),  # what reads the weights takes twice as long, overhead does not
        (spec("kernels"), [7.0, 4.0]),
        (spec("kernels", overhead_s=1.0), [10.0, 4.0]),  # one launches while the other computes
        (spec("kernels", 0.5, overhead_s=1.0), [12.0, 6.0]),
    ],
)
def test_two_engines_that_share_a_device(of: SimSpec, expected: list[float]) -> None:
    """A long job of 5 iterations and beside it, from the start, a short one of 2 on another engine."""
    assert finished([of, of], [(0, 0.0, 5), (1, 0.0, 2)]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("overhead_s", "expected"),
    [
        (1.0, [7.0, 4.5]),  # kernels of 0.5 and 2 s: 3 and 1.125 times as long; 1.5 of the first one's 4 s are done at 4.5
        (0.0, [4.0, 3.0]),  # kernels of 0.25 and 1 s: 3 times as long; the other has two thirds of the bandwidth
    ],
)
def test_an_engine_with_short_kernels_waits_for_one_with_long_ones(overhead_s: float, expected: list[float]) -> None:
    """Two iterations each, one in four layers and one in a single one."""
    of = [spec("mps", overhead_s=overhead_s, wait=0.5, layers=layers) for layers in (4, 1)]
    assert finished(of, [(0, 0.0, 2), (1, 0.0, 2)]) == pytest.approx(expected, rel=1e-9)


arrivals_of = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 40).map(lambda ticks: ticks / 4), st.integers(1, 40)), min_size=1, max_size=8
)
costs: dict[str, Any] = {"overhead_s": 0.25, "kv_bytes": 2.0**-6}


waiting_costs = st.sampled_from([0.0, 0.55, 1.0])


def two(sharing: str, wait: float, efficiency: float = 1.0) -> list[SimSpec]:
    return [spec(sharing, efficiency, wait=wait, layers=layers, **costs) for layers in (28, 64)]


@given(arrivals_of, waiting_costs)
def test_an_engine_alone_is_as_fast_as_ever(arrivals: list[tuple[int, float, int]], wait: float) -> None:
    alone = [(0, at, length) for _, at, length in arrivals]
    assert finished(two("mps", wait, 0.5), alone) == finished(two("time_slices", wait, 0.5), alone)


@given(arrivals_of, st.lists(st.floats(0, 100), max_size=5), st.sampled_from(["mps", "kernels", "time_slices"]), waiting_costs)
def test_looking_at_a_device_changes_nothing(arrivals: list[tuple[int, float, int]], looks: list[float], sharing: str, wait: float) -> None:
    of = two(sharing, wait, 0.75)
    assert finished(of, arrivals, looks) == finished(of, arrivals)


@given(st.integers(1, 60), st.integers(1, 60), st.sampled_from([0.0, 2.0**-6, 0.5]), st.floats(0.1, 1), st.integers(1, 100))
def test_sharing_makes_nothing_faster_and_loses_only_its_efficiency(
    one: int, other: int, kv_bytes: float, efficiency: float, layers: int
) -> None:
    def ends(sharing: str, factor: float = 1.0, wait: float = 0.0) -> list[float]:
        of = [spec(sharing, factor, overhead_s=0.25, kv_bytes=kv_bytes, wait=wait, layers=each) for each in (1, layers)]
        return finished(of, [(0, 0.0, one), (1, 0.0, other)])

    alone = [finished([spec("mps", overhead_s=0.25, kv_bytes=kv_bytes)], [(0, 0.0, length)])[0] for length in (one, other)]
    both, slower, kernels, slices = ends("mps"), ends("mps", efficiency), ends("kernels"), ends("time_slices")
    waiting = ends("mps", wait=1.0)
    assert all(shared >= own * (1 - 1e-9) for shared, own in zip([*both, *waiting], alone * 2, strict=True))
    assert all(late >= shared * (1 - 1e-9) for late, shared in zip(slower, both, strict=True))
    traffic = sum(end - 0.25 * length for end, length in zip(alone, (one, other), strict=True))
    assert min(max(both), max(waiting)) >= traffic * (1 - 1e-9)
    assert max(both) <= max(kernels) * (1 + 1e-9)
    assert max(kernels) <= max(slices) * (1 + 1e-9)
    assert max(both) * (1 - 1e-9) <= max(waiting) <= max(slices) * (1 + 1e-9)
