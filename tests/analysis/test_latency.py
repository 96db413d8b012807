"""Percentiles by hand and against numpy; paths of chains by hand, and of whole runs against a plain reference."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.analysis.time.latency import END, CriticalPath, Percentiles, critical_path, latencies
from pipeline.analysis.time.work import read_work
from pipeline.store.query import Query
from tests.support.reference_analyses import path_totals
from tests.support.runs import rows, solve_short
from tests.support.traces import call, card, chain, write

KNOWN = {"queue_time_s": 0.5, "prefill_time_s": 0.25, "decode_time_s": 1.0}


def path(folder: Path) -> CriticalPath:
    work = read_work(Query(folder))
    return critical_path(work)


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


def test_a_path_by_hand(tmp_path: Path) -> None:
    calls = [
        call("a", "d", 0.5, 1, 3, **KNOWN),
        call("a", "t", 0.5, 0.5, 2),  # beside it
        call("a", "t", 4, 4, 5, error_type="CallTimeout"),
        call("a", "t", 5, 7, 9, attempt=1, **KNOWN | {"decode_time_s": 9.0}),
    ]
    run = write(tmp_path, calls=calls, chains=[chain("a", 0, 10), chain("b", 0, 4, stop_reason="error")], steps=[], card=card(0, 10))
    found = path(run)
    assert (found.chains, found.chain_time_s) == (1, 10)
    assert (
        found.total_s
        == found.mean_s
        == {
            ("by d", "between"): 0.5,
            ("by d", "wait"): 0.5,
            ("by d", "queue"): 0.5,
            ("by d", "prefill"): 0.25,
            ("by d", "decode"): 1,
            ("by d", "transfer"): 0.25,
            ("by t", "between"): 1,
            ("by t", "engine"): 1,
            ("by t", "retry"): 2,
            ("by t", "queue"): 0.5,
            ("by t", "prefill"): 0.25,
            ("by t", "decode"): 1.25,  # an engine whose clock ran longer than ours
            (END, "between"): 1,
        }
    )


def test_calls_that_touch_follow_each_other_in_spite_of_rounding(tmp_path: Path) -> None:
    times = {"submit_unix_ns": 10, "end_unix_ns": 21, "client_wait_s": 0.0}
    calls = [call("a", "d", 0, 0, 0, **times), call("a", "t", 0, 0, 0, **times | {"submit_unix_ns": 20, "end_unix_ns": 30})]
    run = write(tmp_path, calls=calls, chains=[chain("a", 0, 0, start_unix_ns=10, end_unix_ns=30)], steps=[])
    assert path(run).total_s == {("by d", "engine"): 10 / 1e9, ("by t", "engine"): 10 / 1e9}


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["speccot", "likelihood", "target"])
def test_paths_of_whole_runs_add_up_to_the_times_of_their_chains(tmp_path: Path, graph: str) -> None:
    result = solve_short(tmp_path, graph=graph, batch_size=4, schedule="lockstep")
    work = read_work(Query(result.folder))
    found, calls = critical_path(work), work.calls
    assert found.chain_time_s == pytest.approx(sum(row["chain_time_s"] for row in rows(result, "chains")), abs=1e-6)
    total = path_totals(calls, work.lives.start, work.lives.end, work.lives.status == 0, len(work.stages))
    assert sorted(found.total_s.values()) == sorted((total[total > 0] / 1e9).tolist())
