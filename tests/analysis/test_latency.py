"""Percentiles by hand and against numpy."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.analysis.time.study import Percentiles, latencies
from pipeline.store.query import Query
from tests.support.traces import call, chain, write


def test_percentiles_by_hand(tmp_path: Path) -> None:
    calls = [call("a", "d", 0, 0.5 * i, i, queue_time_s=0.1 * i) for i in range(1, 11)]
    calls += [call("a", "t", 0, 1, 9, error_type="CallTimeout"), call("a", "t", 9, 9, 10)]
    found = latencies(Query(write(tmp_path, calls=calls, chains=[chain("a", 0, 10)])))
    assert found["by d"]["e2e"] == Percentiles(count=10, mean=pytest.approx(2.75), p50=2.5, p90=4.5, p99=5.0, max=5.0)
    assert found["by d"]["queue"].p90 == pytest.approx(0.9)
    assert found["by t"]["e2e"].max == 1  # what was not answered does not count
    assert found["by d"].keys() == {"wait", "queue", "e2e"}  # nothing is known of the others
    assert latencies(Query(write(tmp_path / "none", calls=[]))) == {}


def test_percentiles_are_numpys(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lengths = {f"{count}": random.exponential(1.0, count).round(9).tolist() for count in (1, 2, 3, 9, 10, 11, 99, 100, 101, 200)}
    calls = [call("a", "d", 0, 0, 1, stage=stage, prefill_time_s=length) for stage, some in lengths.items() for length in some]
    for stage, each in latencies(Query(write(tmp_path, calls=calls))).items():
        found = each["prefill"]
        assert [found.p50, found.p90, found.p99] == np.percentile(lengths[stage], [50, 90, 99], method="inverted_cdf").tolist()
        assert (found.count, found.max) == (len(lengths[stage]), max(lengths[stage]))
        assert found.mean == pytest.approx(np.mean(lengths[stage]))
