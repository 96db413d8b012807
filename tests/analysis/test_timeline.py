"""Busy seconds, overlap, requests in flight and tails: by hand, and against plain loops over small runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.analysis.time.occupancy import occupancy, tail_s
from pipeline.analysis.time.work import Axis, RunTimes, read_work
from pipeline.errors import InputError
from pipeline.store.query import Query
from tests.support.traces import S, call, card, chain, write

Call = tuple[str, int, int]
"""Engine, sent, ended, in seconds."""
Life = tuple[int, int, int]
"""Start and end in seconds, and the replica of a chain."""


class Timeline(NamedTuple):
    busy_s: dict[str, float]
    overlap_s: float
    tail_s: float | None
    replicas: int


def timeline(work: RunTimes) -> Timeline:
    found = occupancy(work, 1)
    return Timeline({role: each.total_busy_s for role, each in found.engines.items()}, found.overlap_s, tail_s(work), found.replicas)


def measured(folder: Path, *calls: Call) -> Timeline:
    return timeline(read_work(Query(write(folder, calls=[call("a", engine, submit, submit, end) for engine, submit, end in calls]))))


def replicated(folder: Path, chains: Sequence[Life], calls: Sequence[Any] = (), **more: Any) -> RunTimes:
    """A run with the replicas 0, 1 and 2."""
    rows = [chain(f"c{place}", start, end, replica=replica) for place, (start, end, replica) in enumerate(chains)]
    return read_work(Query(write(folder, calls=calls, chains=rows, card=card(0, 20, **more))))


def tail(work: RunTimes) -> float | None:
    return tail_s(work)


def test_busy_overlap_and_in_flight_by_hand(tmp_path: Path) -> None:
    #      0 1 2 3 4 5 6 7 8 9 10
    # d    =====   ===                 5 busy, of which 2 twice
    # t        =======     ===         6 busy
    found = measured(tmp_path, ("d", 0, 2), ("d", 1, 3), ("d", 4, 6), ("d", 4, 5), ("t", 2, 6), ("t", 8, 10))
    assert {role: found.busy_s[role] for role in "dt"} == {"d": 5, "t": 6}
    assert found.overlap_s == 3


def test_blocks_that_touch_are_one_and_do_not_overlap_another_engine(tmp_path: Path) -> None:
    found = measured(tmp_path, ("d", 0, 1), ("t", 1, 2), ("d", 2, 3), ("d", 3, 4))
    assert (found.overlap_s, found.busy_s["d"]) == (0, 3)


def test_no_calls_an_instant_and_a_clock_that_stepped_back(tmp_path: Path) -> None:
    assert measured(tmp_path / "none").overlap_s == 0
    assert measured(tmp_path / "instant", ("d", 5, 5), ("d", 5, 3)).busy_s["d"] == 0


def test_a_part_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    part = tmp_path / "calls" / "part-00000.parquet"
    part.write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot be read"):
        read_work(Query(tmp_path))


def test_pauses_are_left_out_of_time() -> None:
    axis = Axis(10, ((20, 30), (50, 51)))
    assert [axis.of(instant) for instant in (10, 20, 25, 30, 50, 51, 60)] == [0, 10, 10, 10, 30, 30, 39]


def test_of_a_chain_with_several_rows_the_last_counts(tmp_path: Path) -> None:
    rows = [chain("a", 0, 5, stop_reason="error"), chain("b", 0, 6), chain("a", 0, 9)]
    lives = read_work(Query(write(tmp_path, chains=rows, card=card(0, 9)))).lives
    assert (sorted(lives.end.tolist()), lives.status.tolist()) == ([6 * S, 9 * S], [0, 0])


def test_a_call_before_the_start_moves_the_start(tmp_path: Path) -> None:
    work = read_work(Query(write(tmp_path, calls=[call("a", "d", -1, -1, 3)], chains=[chain("a", 0, 9)], card=card(0, 9))))
    assert (work.span, work.lives.start.tolist()) == (10 * S, [S])


@pytest.mark.parametrize(
    ("lives", "batch_size", "expected"),
    [
        ([(0, 5), (0, 8), (5, 10)], 2, 2),
        ([(0, 5), (0, 8), (6, 10)], 2, 2),
        ([(0, 3), (0, 4), (0, 5)], 64, 2),
        ([(0, 4), (4, 4)], 2, 0),
        ([(4, 4)], 1, 0),
        ([], 2, None),
    ],
)
def test_the_tail(tmp_path: Path, lives: list[tuple[int, int]], batch_size: int, expected: float | None) -> None:
    rows = [chain(f"{place}", *life) for place, life in enumerate(lives)]
    assert tail(read_work(Query(write(tmp_path, chains=rows, card=card(0, 10, batch_size=batch_size))))) == expected


def test_the_tail_of_two_replicas_by_hand(tmp_path: Path) -> None:
    #     0 1 2 3 4 5 6 7 8 9
    # 0   [= = =][= = = =]      two at once until 6, then one until 7
    # 0   [= = = = = =]
    # 1   [= = = = =]           two at once until 5, when no problem waits: the last one was admitted at 4
    # 1   [= = = =][= = = = =]  ends at 9
    lives = [(0, 3, 0), (3, 7, 0), (0, 6, 0), (0, 5, 1), (0, 4, 1), (4, 9, 1)]
    times = [("d", 0, 6, 0), ("t", 4, 7, 0), ("d", 0, 2, 1), ("t", 5, 6, 1), ("t", 8, 9, 1)]
    calls = [call(f"c{3 * replica}", engine, start, start, end, replica=replica) for engine, start, end, replica in times]
    rows = [chain(f"c{place}", start, end, replica=replica) for place, (start, end, replica) in enumerate(lives)]
    found = timeline(read_work(Query(write(tmp_path, calls=calls, chains=rows, card=card(0, 9)))))
    assert (found.replicas, found.busy_s["d"], found.tail_s) == (2, (6 + 2) / 2, 4)


lives = st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(0, 2)).map(lambda row: (row[0], row[0] + row[1], row[2]))
calls_of_chains = st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.integers(0, 20), st.integers(0, 9))


@pytest.mark.slow
@given(st.lists(lives, min_size=1, max_size=6), st.lists(calls_of_chains, max_size=20), st.integers(1, 4))
def test_plain_loops_say_the_same(tmp_path_factory: pytest.TempPathFactory, chains: list[Life], told: Any, batch_size: int) -> None:
    """Chains that make calls of any engine of their replica, in their time or not."""
    numbers = {replica for *_, replica in chains}
    told = [(place % len(chains), engine, start, start + length) for place, engine, start, length in told]
    told = [(place, chains[place][2], engine, start, end) for place, engine, start, end in told]
    rows = [call(f"c{place}", engine, start, start, end, replica=replica) for place, replica, engine, start, end in told]
    found = timeline(replicated(tmp_path_factory.mktemp("run"), chains, rows, batch_size=batch_size))
    seconds = {
        (number, role): {
            second for _, replica, engine, start, end in told if (replica, engine) == (number, role) for second in range(start, end)
        }
        for number in numbers
        for role in "abc"
    }
    several = [sum(sum(second in seconds[number, role] for role in "abc") > 1 for second in range(50)) for number in numbers]
    for role in {role for _, _, role, *_ in told}:
        assert found.busy_s[role] == pytest.approx(sum(len(seconds[number, role]) for number in numbers) / len(numbers))
    assert found.overlap_s == pytest.approx(sum(several) / len(numbers))
    assert found.tail_s == tail_one_by_one(chains, batch_size)


def tail_one_by_one(chains: Sequence[Life], batch_size: int) -> float:
    """Replica by replica, second by second."""
    over, begins = max(end for _, end, _ in chains), []
    for number in {replica for *_, replica in chains}:
        live = [sum(start <= second < end for start, end, replica in chains if replica == number) for second in range(over + 1)]
        full = min(batch_size, max([*live, 1]))
        begins.append(max(second for second in range(over + 1) if live[second] >= full) + 1)
    return over - min(begins)
