"""Percentiles by hand, against numpy, and within their error where only counts are kept."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.analysis.time.calls import accumulate
from pipeline.analysis.time.latency import LARGEST, RELATIVE_ERROR, SMALLEST, BinCounts, LatencyAccumulator, Percentiles, exactly, latencies
from tests.support.runs import solve
from tests.support.traces import call, chain, write


def test_by_hand(tmp_path: Path) -> None:
    calls = [call("a", "d", 0, 0.5 * i, i, queue_time_s=0.1 * i) for i in range(1, 11)]
    calls += [call("a", "t", 0, 1, 9, error_type="CallTimeout"), call("a", "t", 9, 9, 10)]
    found = latencies(write(tmp_path, calls=calls, chains=[chain("a", 0, 10)]))
    assert found["by d"]["e2e"] == Percentiles(count=10, mean=pytest.approx(2.75), p50=2.5, p90=4.5, p99=5.0, max=5.0)
    assert found["by d"]["queue"].p90 == pytest.approx(0.9)
    assert found["by t"]["e2e"].max == 1  # what was not answered does not count
    assert found["by d"].keys() == {"wait", "queue", "e2e"}  # nothing is known of the others
    assert latencies(write(tmp_path / "none", calls=[])) == {}


@pytest.mark.slow
def test_the_same_from_counts_on_a_whole_run(tmp_path: Path) -> None:
    folder = solve(tmp_path).folder
    exact = latencies(folder)
    [counted] = accumulate(folder, lambda outline: (LatencyAccumulator(exact_calls=10),))
    for stage, quantities in counted.result().items():
        assert quantities.keys() == exact[stage].keys()
        for quantity, one in quantities.items():
            other = exact[stage][quantity]
            assert (one.count, one.max) == (other.count, other.max)
            assert one.mean == pytest.approx(other.mean, rel=1e-9)
            assert [one.p50, one.p90, one.p99] == pytest.approx([other.p50, other.p90, other.p99], rel=RELATIVE_ERROR, abs=SMALLEST)


values = st.one_of(st.just(0.0), st.just(np.nan), st.floats(SMALLEST, LARGEST), st.floats(1e-6, 100))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(-1, 1), values), max_size=40))
@pytest.mark.slow
def test_a_percentile_from_counts_is_within_its_error(rows: list[tuple[int, float]]) -> None:
    stage, seconds = np.array([row[0] for row in rows], np.int32), np.array([row[1] for row in rows], float)
    totals = BinCounts()
    totals.add(stage[stage < 1], seconds[stage < 1], 1)
    totals.add(stage[stage == 1], seconds[stage == 1], 2)
    for place in range(2):
        exact, counted = exactly(seconds[stage == place]), totals.percentiles(place)
        assert (exact is None) == (counted is None)
        if exact is not None and counted is not None:
            assert (counted.count, counted.max) == (exact.count, exact.max)
            for name in ("p50", "p90", "p99"):
                assert getattr(counted, name) == pytest.approx(getattr(exact, name), rel=RELATIVE_ERROR)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_exact_percentiles_are_numpys(seconds: list[float]) -> None:
    found = exactly(np.array(seconds))
    assert found is not None
    wanted = np.percentile(seconds, [50, 90, 99], method="inverted_cdf")
    assert [found.p50, found.p90, found.p99] == wanted.tolist()
