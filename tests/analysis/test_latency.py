"""Percentiles by hand and against numpy."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.analysis.time.latency import Latency, latencies
from pipeline.store.query import Query
from tests.support.traces import call, chain, write


def test_percentiles_by_hand(tmp_path: Path) -> None:
    calls = [call("a", "d", 0, 0.5 * i, i, queue_time_s=0.1 * i) for i in range(1, 11)]
    calls += [call("a", "t", 0, 1, 9, error_type="CallTimeout"), call("a", "t", 9, 9, 10)]
    found = {(each.stage, each.quantity): each for each in latencies(Query(write(tmp_path, calls=calls, chains=[chain("a", 0, 10)])))}
    times = {"mean": pytest.approx(2.75), "p50": 2.5, "p90": 4.5, "p99": 5.0, "max": 5.0}
    assert found["by d", "e2e"] == Latency(stage="by d", quantity="e2e", count=10, **times)
    assert found["by d", "queue"].p90 == pytest.approx(0.9)
    assert found["by t", "e2e"].max == 1, "what was not answered does not count"
    assert {quantity for stage, quantity in found if stage == "by d"} == {"wait", "queue", "e2e"}, "nothing is known of the others"
    assert latencies(Query(write(tmp_path / "none", calls=[]))) == []


def test_percentiles_are_numpys(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lengths = {f"{count}": random.exponential(1.0, count).round(9).tolist() for count in (1, 2, 3, 9, 10, 11, 99, 100, 101, 200)}
    calls = [call("a", "d", 0, 0, 1, stage=stage, prefill_time_s=length) for stage, some in lengths.items() for length in some]
    for found in latencies(Query(write(tmp_path, calls=calls))):
        if found.quantity == "prefill":
            some = lengths.pop(found.stage)
            assert [found.p50, found.p90, found.p99] == np.percentile(some, [50, 90, 99], method="inverted_cdf").tolist()
            assert (found.count, found.max, found.mean) == (len(some), max(some), pytest.approx(np.mean(some)))
    assert not lengths
