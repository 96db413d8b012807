"""When chains were on which replica; each replica's figures against plain loops over the rows; and that those of the run stay right."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.analysis.study import analyse
from pipeline.analysis.summary import summarize
from pipeline.analysis.summary_tables import engines, facts
from pipeline.analysis.time.timeline import timeline
from pipeline.analysis.time.work import read_work
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile
from tests.support.replicas import EACH, LOSS, SLOW, cluster_run
from tests.support.runs import solve
from tests.support.traces import S, call, card, chain, over_time, same, write

Stay = tuple[int, int, float, float]
"""Replica, place of the chain, start, end."""


def stays_of(folder: Path) -> list[Stay]:
    found = read_work(Query(folder)).stays
    assert found is not None
    columns = (found.columns[name].tolist() for name in ("replica", "chain", "start", "end"))
    return [(replica, place, start / S, end / S) for replica, place, start, end in zip(*columns, strict=True)]


def test_a_chain_without_a_row_is_where_its_last_call_was(tmp_path: Path) -> None:
    calls = [call("a", "d", 0, 0, 2, replica=3), call("b", "d", 1, 1, 4, replica=3), call("a", "d", 2, 3, 5, replica=7)]
    assert stays_of(write(tmp_path, calls=calls, closed=False)) == [(3, 0, 0, 2), (3, 1, 1, 5), (7, 0, 2, 5)]


def test_replicas_that_were_started_count_and_those_that_never_were_do_not(tmp_path: Path) -> None:
    replicas = [{"starts": 1}, {"starts": 0}, {"starts": 2}]
    sessions = [session | {"replicas": replicas} for session in card(0, 9)["sessions"]]
    folder = write(
        tmp_path, calls=[call("a", "d", 0, 0, 1, replica=0)], chains=[chain("a", 0, 1, replica=0)], card=card(0, 9, sessions=sessions)
    )
    found = read_work(Query(folder)).stays
    assert found is not None
    assert [len(found.lives(number).start) for number in found.admitted] == [1, 0]
    assert [*found.admitted] == [0, 2]


def test_a_process_that_had_no_replicas_counts_as_the_first_of_a_run_that_went_on_with_some(tmp_path: Path) -> None:
    calls = [call("a", "d", 0, 0, 4), call("b", "d", 4, 4, 6, replica=0), call("c", "d", 4, 4, 8, replica=1)]
    rows = [chain("a", 0, 4), chain("b", 4, 6, replica=0), chain("c", 4, 8, replica=1)]
    [alone], [several] = card(0, 4)["sessions"], card(4, 8)["sessions"]
    sessions = [alone, several | {"replicas": [{"starts": 1}, {"starts": 1}]}]
    folder = write(tmp_path, calls=calls, chains=rows, card=card(0, 8, sessions=sessions))
    assert stays_of(folder) == [(0, 0, 0, 4), (0, 1, 4, 6), (1, 2, 4, 8)]
    assert timeline(read_work(Query(folder))).engines["d"].busy_s == (6 + 4) / 2


def test_when_no_more_problems_waited_for_a_replica(tmp_path: Path) -> None:
    # 0 began a and b and let b go; 1 began c and got b; 2 was lost after d
    calls = [call("b", "d", 3, 3, 4, replica=0)]
    rows = [chain("a", 0, 5, replica=0), chain("b", 3, 9, replica=1), chain("c", 1, 2, replica=1), chain("d", 2, 3, replica=2)]
    replicas = [{"starts": 1}, {"starts": 1}, {"starts": 2, "losses": ["gone"]}, {"starts": 1}]
    sessions = [session | {"replicas": replicas} for session in card(0, 9)["sessions"]]
    folder = write(tmp_path, calls=calls, chains=rows, card=card(0, 9, sessions=sessions))
    found = read_work(Query(folder)).stays
    assert found is not None
    assert found.admitted == {0: 3 * S, 1: S, 2: 3 * S, 3: 3 * S}


@pytest.mark.slow
def test_a_run_of_one_process_or_one_replica_has_none(tmp_path: Path, replica_runs: dict[int, Path]) -> None:
    for folder in (solve(tmp_path).folder, replica_runs[1]):
        assert read_work(Query(folder)).stays is None


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / table).to_pylist()
    return found


def part(folder: Path, number: int) -> Path:
    """The run that a replica is made of."""
    return folder.parent / f"part-{number}/run"


@pytest.mark.slow
def test_each_replica_against_its_rows(replica_runs: dict[int, Path]) -> None:
    folder, count = replica_runs[4], 4
    run, found = RunFile.read(folder), analyse(folder).replicas
    chains, tokens = Counter(row["replica"] for row in rows(folder, "chains")), Counter[tuple[int, str]]()
    for row in rows(folder, "calls"):
        tokens[row["replica"], row["engine"]] += row["output_tokens"]
    last = {number: max(row["end_unix_ns"] for row in rows(folder, "chains") if row["replica"] == number) for number in range(count)}
    span_s = run.wall_time_s or 0.0
    assert [each.replica for each in found] == list(range(count))
    for each in found:
        assert (each.chains, each.done, each.nodes) == (chains[each.replica], chains[each.replica], (f"node-{each.replica}",))
        assert {role: engine.output_tokens for role, engine in each.engines.items()} == {
            role: tokens[each.replica, role] for role in run.plan.engines
        }
        assert each.problems_per_s == pytest.approx(each.done / span_s)
        assert each.output_tokens_per_s == pytest.approx(sum(tokens[each.replica, role] for role in run.plan.engines) / span_s)
        assert each.tail_s == pytest.approx(((run.ended or 0) - last[each.replica]) / 1e9)
        assert each.busy_share + sum(each.idle_share.values()) == pytest.approx(1)
        for engine in each.engines.values():
            assert engine.busy_share * span_s + sum(engine.idle_s.values()) == pytest.approx(span_s)
    assert [each.chains for each in found] == [EACH, EACH, EACH, EACH // SLOW]
    assert [(each.starts, each.losses) for each in found] == [(1, ()), (1, ()), (1, ()), (2, (LOSS,))]
    assert not any(each.dropped for each in found)
    assert sum(each.problems_per_s or 0 for each in found) == pytest.approx(summarize(folder).problems_per_s)


@pytest.mark.slow
def test_a_replica_is_busy_as_the_run_that_it_is_made_of(replica_runs: dict[int, Path]) -> None:
    together = over_time(replica_runs[4])
    for number, mine in together.replicas.items():
        alone, times = over_time(part(replica_runs[4], number)), SLOW if number == 3 else 1
        for role, engine in mine.engines.items():
            assert engine.total_busy_s == pytest.approx(times * alone.engines[role].total_busy_s)
            assert engine.total_idle_s["orchestration"] == pytest.approx(times * alone.engines[role].total_idle_s["orchestration"])
            assert engine.total_idle_s["nothing_admitted"] == 0, "a replica that has ended is in the tail of the others"
        assert mine.overlap_s == pytest.approx(times * alone.overlap_s)


@pytest.mark.slow
def test_the_run_is_the_mean_of_its_replicas_and_the_sum_of_their_chains_and_requests(replica_runs: dict[int, Path]) -> None:
    found, times = over_time(replica_runs[4], bins=50), timeline(read_work(Query(replica_runs[4])))
    each = list(found.replicas.values())
    assert found.live == pytest.approx(sum(one.live for one in each))
    assert max(found.live) > 4, "more than the batch size, which is that of a replica"
    assert found.overlap_s == pytest.approx(np.mean([one.overlap_s for one in each])) == pytest.approx(times.overlap_s)
    for role, engine in found.engines.items():
        assert engine.busy_s == pytest.approx(np.mean([one.engines[role].busy_s for one in each], axis=0))
        assert engine.in_flight == pytest.approx(sum(one.engines[role].in_flight for one in each))
        assert engine.busy_s + sum(engine.idle_s.values()) == pytest.approx(np.diff(found.edges_s))
        assert engine.total_busy_s == pytest.approx(times.engines[role].busy_s)
        assert (np.diff(found.edges_s) @ engine.in_flight) / times.span_s == pytest.approx(times.engines[role].mean_in_flight)
        assert times.engines[role].busy_share <= 1
    device = next(iter(found.devices.values()))
    assert device.total_busy_s + sum(device.total_idle_s.values()) == pytest.approx(found.span_s)


@pytest.mark.slow
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
    zero, one = (
        {role: {"busy": engine.total_busy_s} | {c: s for c, s in engine.total_idle_s.items() if s} for role, engine in each.engines.items()}
        for each in found.replicas.values()
    )
    assert zero["d"] == {"busy": 4, "other_engine": 2, "tail": 2, "nothing_admitted": 1}
    assert zero["t"] == {"busy": 2, "other_engine": 4, "tail": 2, "nothing_admitted": 1}
    assert one["d"] == {"busy": 8, "nothing_admitted": 1}
    assert (found.engines["d"].total_busy_s, found.engines["t"].total_busy_s, found.overlap_s) == (6, 1, 0)
    assert found.engines["d"].in_flight.tolist() == [2, 2, 1, 1, 2, 2, 1, 1, 0]
    summary = summarize(folder)
    assert (summary.replicas, summary.tail_time_s, summary.overlap_share, summary.engines["d"].busy_s) == (2, 2, 0, 6)


def test_a_chain_that_went_on_elsewhere_keeps_each_replica_busy_in_its_turn(tmp_path: Path) -> None:
    calls = [call("a", "d", 0, 0, 2, replica=0), call("a", "d", 3, 4, 6, replica=1), call("b", "d", 0, 0, 1, replica=1)]
    chains = [chain("a", 0, 6, replica=1), chain("b", 0, 6, replica=1)]
    found = over_time(
        write(tmp_path, calls=calls, chains=chains, steps=[], card=card(0, 6, engines={"d": card(0, 1)["engines"]["d"]})), bins=6
    )
    zero, one = found.replicas.values()
    assert (zero.live.tolist(), one.live.tolist()) == ([1, 1, 0, 0, 0, 0], [1, 1, 2, 2, 2, 2])
    assert zero.engines["d"].busy_s.tolist() == [1, 1, 0, 0, 0, 0]
    assert one.engines["d"].busy_s.tolist() == [1, 0, 0, 0, 1, 1]
    assert one.engines["d"].idle_s["orchestration"].tolist() == [0, 1, 1, 1, 0, 0]


@pytest.mark.slow
def test_one_replica_is_as_one_process(replica_runs: dict[int, Path]) -> None:
    folder = replica_runs[1]
    assert same(over_time(folder), over_time(part(folder, 0)))
    assert analyse(folder).replicas == ()
    one, other = summarize(folder), summarize(part(folder, 0))
    assert one.replicas == 1
    assert (one.engines, one.tail_time_s, one.overlap_share) == (other.engines, other.tail_time_s, other.overlap_share)


@pytest.mark.slow
def test_the_summary_says_what_is_of_all_replicas(replica_runs: dict[int, Path]) -> None:
    summary = summarize(replica_runs[4])
    told = dict(facts(summary).rows)
    assert "a replica had fewer chains" in told["wall time"]
    assert "engines of a replica" in told["overlap"]
    assert "Of all 4 replicas" in engines(summary).note
    alone = summarize(part(replica_runs[4], 0))
    assert engines(alone).note == ""


@pytest.mark.slow
def test_a_run_on_a_cluster_with_a_lost_replica(tmp_path: Path) -> None:
    """The chains of a lost replica go on elsewhere; whatever they do, the figures are consistent."""
    folder = cluster_run(tmp_path, 4, slow=3, lost=1)
    run, found, analysis = RunFile.read(folder), over_time(folder), analyse(folder)
    was_on: dict[str, set[int]] = {}
    for row in rows(folder, "calls"):
        was_on.setdefault(row["chain_id"], set()).add(row["replica"])
    assert sum(len(on) > 1 for on in was_on.values()) >= 1
    assert [each.losses for each in analysis.replicas] == [(), (LOSS,), (), ()]
    assert sum(each.chains for each in analysis.replicas) == len(was_on) == 120
    for mine in found.replicas.values():
        for engine in mine.engines.values():
            assert engine.total_busy_s + sum(engine.total_idle_s.values()) == pytest.approx(found.span_s)
        assert max(mine.live) <= run.batch_size + 2, "chains on their way from one replica to another count for that where they come"
    lived = [(row["end_unix_ns"] - row["start_unix_ns"]) / 1e9 for row in rows(folder, "chains")]
    assert np.diff(found.edges_s) @ found.live == pytest.approx(sum(lived)), "every chain is on one replica at a time"
    summary = summarize(folder)
    assert 0 < (summary.tail_time_s or 0) < (summary.wall_time_s or 0)
    tail = {number: each.engines["target"].total_idle_s["tail"] for number, each in found.replicas.items()}
    assert min(tail, key=lambda number: tail[number]) == 3, "the slow one is the last at work"
    for engine in analysis.ledger.engines.values():
        assert sum(engine.output.values()) == engine.counted_output
