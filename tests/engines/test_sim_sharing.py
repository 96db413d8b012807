"""How engines that are busy on one simulated device slow each other: nothing is gained, nothing is lost, and looking changes nothing."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.sim.device import SimDevice
from pipeline.engines.sim.scheduler import Job, Scheduler
from pipeline.engines.sim.sharing import waits
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec

shares = st.floats(0, 1)
kernels = st.lists(st.floats(1e-6, 1e-2), min_size=2, max_size=4)


@given(kernels, shares)
def test_engines_that_wait_do_no_less_together_than_in_turns(kernels_s: list[float], wait: float) -> None:
    assert sum(1 / each for each in waits(kernels_s, wait)) >= 1 - 1e-9
    assert waits(kernels_s[:1], wait) == [1.0]


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
    assert waits(kernels_s, wait) == pytest.approx(expected, rel=1e-9)


def spec(sharing: str, *, overhead_s: float = 0.0, kv_bytes: float = 0.0, wait: float = 0.0, layers: int = 1) -> SimSpec:
    """An iteration reads its weights in a second."""
    device = SimDeviceSpec(
        name="d",
        flops_per_s=math.inf,
        bytes_per_s=1.0,
        overhead_s=overhead_s,
        sharing=sharing,  # type: ignore[arg-type]
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
        (spec("time_slices", overhead_s=1.0), [14.0, 8.0]),  # whole iterations take turns
        (spec("mps"), [5.0, 2.0]),  # no kernel waits
        (spec("mps", wait=0.5), [6.0, 3.0]),
        (spec("mps", wait=1.0), [7.0, 4.0]),  # kernels alternate
    ],
)
def test_two_engines_that_share_a_device(of: SimSpec, expected: list[float]) -> None:
    """A long job of 5 iterations and beside it, from the start, a short one of 2 on another engine."""
    assert finished([of, of], [(0, 0.0, 5), (1, 0.0, 2)]) == pytest.approx(expected, rel=1e-9)


def test_an_engine_with_short_kernels_waits_for_one_with_long_ones() -> None:
    """Two iterations of 2 s each, in four layers and in one: kernels of 0.5 and 2 s, which make them 3 and 1.125 times as long. The second
    ends at 4.5, when 1.5 s of the first one's 4 s are done."""
    of = [spec("mps", overhead_s=1.0, wait=0.5, layers=layers) for layers in (4, 1)]
    assert finished(of, [(0, 0.0, 2), (1, 0.0, 2)]) == pytest.approx([7.0, 4.5], rel=1e-9)


arrivals_of = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 40).map(lambda ticks: ticks / 4), st.integers(1, 40)), min_size=1, max_size=8
)
waiting_costs = st.sampled_from([0.0, 0.55, 1.0])


def two(sharing: str, wait: float) -> list[SimSpec]:
    return [spec(sharing, wait=wait, layers=layers, overhead_s=0.25, kv_bytes=2.0**-6) for layers in (28, 64)]


@given(arrivals_of, waiting_costs)
def test_an_engine_alone_is_as_fast_as_ever(arrivals: list[tuple[int, float, int]], wait: float) -> None:
    alone = [(0, at, length) for _, at, length in arrivals]
    assert finished(two("mps", wait), alone) == finished(two("time_slices", wait), alone)


@given(arrivals_of, st.lists(st.floats(0, 100), max_size=5), st.sampled_from(["mps", "time_slices"]), waiting_costs)
def test_looking_at_a_device_changes_nothing(arrivals: list[tuple[int, float, int]], looks: list[float], sharing: str, wait: float) -> None:
    of = two(sharing, wait)
    assert finished(of, arrivals, looks) == finished(of, arrivals)


@given(st.integers(1, 60), st.integers(1, 60), st.sampled_from([0.0, 2.0**-6, 0.5]), shares, st.integers(1, 100))
def test_sharing_makes_nothing_faster_and_waiting_costs_no_more_than_turns(
    one: int, other: int, kv_bytes: float, wait: float, layers: int
) -> None:
    def ends(sharing: str) -> list[float]:
        of = [spec(sharing, overhead_s=0.25, kv_bytes=kv_bytes, wait=wait, layers=each) for each in (1, layers)]
        return finished(of, [(0, 0.0, one), (1, 0.0, other)])

    alone = [finished([spec("mps", overhead_s=0.25, kv_bytes=kv_bytes)], [(0, 0.0, length)])[0] for length in (one, other)]
    waiting, slices = ends("mps"), ends("time_slices")
    assert all(shared >= own * (1 - 1e-9) for shared, own in zip([*waiting, *slices], alone * 2, strict=True))
    assert max(waiting) <= max(slices) * (1 + 1e-9)
