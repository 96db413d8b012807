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
from pipeline.engines.sim.sharing import Use, stretch, use_of
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec

shares = st.floats(0, 1)
uses = st.builds(lambda rest, bandwidth, multipliers: Use(rest * bandwidth, rest * multipliers, 1 - rest), shares, shares, shares)
EXAMPLE = Use(1.0, 0.0, 0.0)
"""Takes all of the bandwidth for all of its time."""


@given(st.lists(uses, min_size=1, max_size=4))
def test_the_stretch_is_the_least_with_which_all_engines_fit_on_the_device(found: list[Use]) -> None:
    least = stretch(found)
    assert least >= 1
    if len(found) == 1:
        assert least == 1
    for resource in ("bandwidth", "multipliers"):
        assert taken(found, resource, least) <= 1 + 1e-11
    if least > 1:
        assert max(taken(found, resource, least * (1 - 1e-6)) for resource in ("bandwidth", "multipliers")) > 1 - 1e-11


def taken(found: Sequence[Use], resource: str, by: float) -> float:
    return sum(getattr(use, resource) / use.slowdown(by) for use in found)


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


def spec(sharing: str, efficiency: float = 1.0, *, overhead_s: float = 0.0, kv_bytes: float = 0.0) -> SimSpec:
    """An iteration reads its weights in a second."""
    device = SimDeviceSpec(
        name="d",
        flops_per_s=math.inf,
        bytes_per_s=1.0,
        overhead_s=overhead_s,
        sharing=sharing,  # type: ignore[arg-type]
        sharing_efficiency=efficiency,
    )
    return SimSpec(model="m", device=device, parameters=1.0, bytes_per_parameter=1.0, kv_bytes_per_token=kv_bytes)


def job(number: int, arrival: float, *lengths: int) -> Job:
    return Job((0, arrival, str(number), number), (number,) * 4, 3, lengths, tuple(() for _ in lengths), lambda: None)


def finished(of: SimSpec, engines: int, arrivals: Sequence[tuple[int, float, int]], looks: Sequence[float] = ()) -> list[float]:
    """When each job ends; a job is an engine's number, its arrival and its length. `looks`: times at which the device is looked at."""
    device = SimDevice(of.device)
    joined = [device.join(Scheduler(of)) for _ in range(engines)]
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
    assert finished(of, 2, [(0, 0.0, 5), (1, 0.0, 2)]) == pytest.approx(expected, rel=1e-9)


arrivals_of = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 40).map(lambda ticks: ticks / 4), st.integers(1, 40)), min_size=1, max_size=8
)
costs: dict[str, Any] = {"overhead_s": 0.25, "kv_bytes": 2.0**-6}


@given(arrivals_of)
def test_an_engine_alone_is_as_fast_as_ever(arrivals: list[tuple[int, float, int]]) -> None:
    alone = [(0, at, length) for _, at, length in arrivals]
    assert finished(spec("mps", 0.5, **costs), 2, alone) == finished(spec("time_slices", 0.5, **costs), 2, alone)


@given(arrivals_of, st.lists(st.floats(0, 100), max_size=5), st.sampled_from(["mps", "kernels", "time_slices"]))
def test_looking_at_a_device_changes_nothing(arrivals: list[tuple[int, float, int]], looks: list[float], sharing: str) -> None:
    of = spec(sharing, 0.75, **costs)
    assert finished(of, 2, arrivals, looks) == finished(of, 2, arrivals)


@given(st.integers(1, 60), st.integers(1, 60), st.sampled_from([0.0, 2.0**-6, 0.5]), st.floats(0.1, 1))
def test_sharing_makes_nothing_faster_and_loses_only_its_efficiency(one: int, other: int, kv_bytes: float, efficiency: float) -> None:
    def ends(sharing: str, factor: float) -> list[float]:
        return finished(spec(sharing, factor, overhead_s=0.25, kv_bytes=kv_bytes), 2, [(0, 0.0, one), (1, 0.0, other)])

    alone = [finished(spec("mps", overhead_s=0.25, kv_bytes=kv_bytes), 1, [(0, 0.0, length)])[0] for length in (one, other)]
    both, slower, kernels, slices = ends("mps", 1.0), ends("mps", efficiency), ends("kernels", 1.0), ends("time_slices", 1.0)
    assert all(shared >= own * (1 - 1e-9) for shared, own in zip(both, alone, strict=True))
    assert all(late >= shared * (1 - 1e-9) for late, shared in zip(slower, both, strict=True))
    traffic = sum(end - 0.25 * length for end, length in zip(alone, (one, other), strict=True))
    assert max(both) >= traffic * (1 - 1e-9)
    assert max(both) <= max(kernels) * (1 + 1e-9)
    assert max(kernels) <= max(slices) * (1 + 1e-9)
