"""The tail of all replicas and how evenly they worked: by hand, against a plain loop, and with one replica as without any."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.analysis.summary import tail_time_s
from pipeline.analysis.time.imbalance import imbalance, tail
from pipeline.analysis.time.timeline import NO_REPLICA, ReplicaTime

S = 1_000_000_000


def columns(*rows: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    """Start and end in seconds, and replica, of chains."""
    start, end, replica = np.array(rows, np.int64).reshape(-1, 3).T
    return start * S, end * S, replica


def busy(*spans: tuple[int, int], **engines: float) -> ReplicaTime:
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    return ReplicaTime(engines, 0.0, (starts * S, ends * S))


def test_the_tail_of_two_replicas_by_hand() -> None:
    #     0 1 2 3 4 5 6 7 8 9
    # 0   =====---===           two at once until 6, then one until 7
    # 0   ============
    # 1   =========             two at once until 5, when no problem waits: the last one was admitted at 4
    # 1   ====-=============    ends at 9
    chains = columns((0, 3, 0), (3, 7, 0), (0, 6, 0), (0, 5, 1), (0, 4, 1), (4, 9, 1))
    assert tail(*chains, [0, 1], 2) == (5 * S, 9 * S)
    times = {0: busy((0, 7), d=6, t=3), 1: busy((0, 6), (8, 9), d=2, t=1)}
    found = imbalance(*chains, 2, times)
    assert (found.replicas, found.busy, found.chains, found.tail_s) == (2, 9 / 6, 1.0, 4)
    assert found.tail_idle_share == pytest.approx(1 - (2 + 1 + 1) / 8)


def test_a_replica_that_was_lost_while_problems_waited_begins_no_tail() -> None:
    chains = columns((0, 2, 0), (0, 2, 0), (0, 5, 1), (0, 6, 1), (5, 9, 1))
    assert tail(*chains, [0, 1], 2) == (5 * S, 9 * S), "from the last admission on replica 0 is without a chain"
    assert tail(*chains, [0, 1, 2], 2) == (5 * S, 9 * S), "as is one that never had one"


def test_pauses_between_sessions_are_no_part_of_it() -> None:
    chains = columns((0, 10, 0), (0, 20, 1))
    times = {0: busy((0, 10), d=10), 1: busy((0, 12), (15, 20), d=17)}
    found = imbalance(*chains, 1, times, [(12 * S, 15 * S)])
    assert (found.tail_s, found.tail_idle_share) == (7, 0.5)


def test_no_chain_ended_on_a_replica() -> None:
    found = imbalance(*columns((0, 1, NO_REPLICA)), 4, {0: busy(), 1: busy()})
    assert [found.busy, found.chains, found.tail_s, found.tail_idle_share] == [None] * 4


lives = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(0, 2)).map(lambda row: (row[0], row[0] + row[1], row[2])), min_size=1
)


@given(lives, st.integers(1, 4))
def test_a_plain_loop_says_the_same(rows: list[tuple[int, int, int]], batch_size: int) -> None:
    admitted, over = max(start for start, _, _ in rows), max(end for _, end, _ in rows)
    begins = over
    for replica in {replica for _, _, replica in rows}:
        live = [sum(start <= second < end for start, end, mine in rows if mine == replica) for second in range(over + 1)]
        full = min(batch_size, max(live))
        begins = min(begins, next(second for second in range(admitted, over + 1) if all(count < full for count in live[second:])))
    numbers = sorted({replica for _, _, replica in rows})
    assert tail(*columns(*rows), numbers, batch_size) == (begins * S, over * S)


@given(st.integers(1, 4), st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_one_replica_has_the_tail_of_one_process(batch_size: int, lengths: list[int]) -> None:
    """Chains that are admitted whenever one ends."""
    ends: list[int] = []
    rows = []
    for length in lengths:
        start = sorted(ends)[-batch_size] if len(ends) >= batch_size else 0
        ends.append(start + length)
        rows.append((start, start + length, 0))
    start, end, replica = columns(*rows)
    found = imbalance(start, end, replica, batch_size, {0: busy((0, max(ends)), d=1)})
    assert found.tail_s == tail_time_s(start, end, batch_size)
