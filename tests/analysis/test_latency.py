"""Which calls count, and percentiles against those of numpy."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.analysis.time.latency import Latency, latencies
from pipeline.store.query import Query
from tests.support.traces import call, chain, write


def test_what_is_not_answered_or_not_known_does_not_count(tmp_path: Path) -> None:
    calls = [call("a", "d", 0, 2, 5, queue_time_s=0.1), call("a", "t", 0, 1, 9, error_type="CallTimeout"), call("a", "t", 9, 9, 10)]
    found = {(each.stage, each.quantity): each for each in latencies(Query(write(tmp_path, calls=calls, chains=[chain("a", 0, 10)])))}
    alike = dict.fromkeys(("mean", "p50", "p90", "p99", "max"), 3.0)
    assert found["by d", "e2e"] == Latency(stage="by d", quantity="e2e", count=1, **alike)
    assert (found["by d", "wait"].max, found["by d", "queue"].max, found["by t", "e2e"].max) == (2.0, 0.1, 1.0)
    assert {quantity for stage, quantity in found if stage == "by d"} == {"wait", "queue", "e2e"}
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
