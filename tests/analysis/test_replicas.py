"""Figures of a run on replicas: totals of all, means over them, by hand and over a whole run."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.analysis.headline import engines_table, facts_table
from pipeline.analysis.summary import summarize
from pipeline.analysis.time.occupancy import occupancy
from pipeline.analysis.time.work import read_work
from pipeline.store.query import Query
from tests.support.traces import call, card, chain, over_time, write


def test_what_one_process_solved_counts_as_that_of_the_first_replica(tmp_path: Path) -> None:
    calls = [call("a", "d", 0, 0, 4), call("b", "d", 4, 4, 6, replica=0), call("c", "d", 4, 4, 8, replica=1)]
    rows = [chain("a", 0, 4), chain("b", 4, 6, replica=0), chain("c", 4, 8, replica=1)]
    work = read_work(Query(write(tmp_path, calls=calls, chains=rows, card=card(0, 8))))
    assert work.lives.replica.tolist() == [0, 0, 1]
    assert occupancy(work, 1).engines["d"].total_busy_s == (6 + 4) / 2


def test_two_replicas_by_hand(tmp_path: Path) -> None:
    #     0 1 2 3 4 5 6 7 8 9
    # a 0 [d d t t]             replica 0, batch size 1
    # b 0         [d d]         the last admission, at 4; replica 0 is without a chain from 6 on
    # c 1 [d d d d d d d d]     replica 1, ends at 8; the run ends at 9
    calls = [
        call("a", "d", 0, 0, 2, replica=0),
        call("a", "t", 2, 2, 4, replica=0),
        call("b", "d", 4, 4, 6, replica=0),
        call("c", "d", 0, 0, 8, replica=1),
    ]
    lives = {"a": (0, 4, 0), "b": (4, 6, 0), "c": (0, 8, 1)}
    chains = [chain(name, start, end, replica=on, input_row=row) for row, (name, (start, end, on)) in enumerate(lives.items(), 1)]
    folder = write(tmp_path, calls=calls, chains=chains, steps=[], card=card(0, 9, batch_size=1))
    found = over_time(folder, bins=9)
    spent = {role: {"busy": each.total_busy_s} | {c: s for c, s in each.total_idle_s.items() if s} for role, each in found.engines.items()}
    assert spent["d"] == {"busy": (4 + 8) / 2, "other_engine": 2 / 2, "tail": 2 / 2, "nothing_admitted": 1}
    assert spent["t"] == {"busy": 2 / 2, "other_engine": (4 + 8) / 2, "tail": 2 / 2, "nothing_admitted": 1}
    assert (found.overlap_s, found.replicas) == (0, 2)
    assert found.engines["d"].in_flight.tolist() == [2, 2, 1, 1, 2, 2, 1, 1, 0]
    summary = summarize(folder)
    assert (summary.replicas, summary.tail_time_s, summary.overlap_share, summary.engines["d"].busy_s) == (2, 2, 0, 6)


@pytest.mark.slow
def test_the_parts_of_a_run_add_up(replica_runs: dict[int, Path]) -> None:
    found, times = over_time(replica_runs[3], bins=50), summarize(replica_runs[3])
    assert max(found.live) > 4, "more than the batch size, which is that of a replica"
    assert found.overlap_s == pytest.approx(times.overlap_share * times.span_s)
    for role, engine in found.engines.items():
        assert engine.busy_s + sum(engine.idle_s.values()) == pytest.approx(np.diff(found.edges_s))
        assert engine.total_busy_s == pytest.approx(times.engines[role].busy_s)
        assert (np.diff(found.edges_s) @ engine.in_flight) / times.span_s == pytest.approx(times.engines[role].mean_in_flight)
    device = next(iter(found.devices.values()))
    assert device.total_busy_s + sum(device.total_idle_s.values()) == pytest.approx(found.span_s)


@pytest.mark.slow
def test_the_summary_says_what_is_of_all_replicas(replica_runs: dict[int, Path]) -> None:
    summary = summarize(replica_runs[3])
    told = dict(facts_table(summary).rows)
    assert "a replica had fewer chains" in told["wall time"]
    assert "engines of a replica" in told["overlap"]
    assert "Of all 3 replicas" in engines_table(summary).note
    alone = summarize(replica_runs[1])
    assert (alone.replicas, engines_table(alone).note) == (1, "")
