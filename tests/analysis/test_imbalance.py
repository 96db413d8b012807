"""The tail of all replicas and how evenly they worked: by hand, against a plain loop, and with one replica as without any."""

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pipeline.analysis.summary import tail_time_s
from pipeline.analysis.time.imbalance import imbalance, tail
from pipeline.analysis.time.outline import FINISHED, Axis, Outline
from pipeline.analysis.time.stays import Stays
from pipeline.analysis.time.timeline import ReplicaTime
from pipeline.store.run_file import UNKNOWN
from tests.support.traces import chains_of

S = 1_000_000_000
Row = tuple[int, int, int]
"""Start and end in seconds, and replica."""


def stays_of(*rows: Row, numbers: Collection[int] = (), lost: Collection[int] = ()) -> Stays:
    """Each row a chain of its own; of the replicas `numbers`, or those that the rows name."""
    known = sorted(numbers or {replica for _, _, replica in rows})
    ordered = sorted(rows, key=lambda row: row[2])
    start, end, replica = np.array(ordered, np.int64).reshape(-1, 3).T
    latest = max((start for start, _, _ in rows), default=0)
    admitted = [max((start for start, _, mine in rows if mine == number and number not in lost), default=latest) for number in known]
    return Stays(
        numbers=np.array(known),
        replica=np.searchsorted(known, replica),
        chain=np.arange(len(rows)),
        start=start * S,
        end=end * S,
        status=np.full(len(rows), FINISHED),
        admitted=np.array(admitted, np.int64) * S,
    )


def outline_of(stays: Stays, batch_size: int, *pauses: tuple[int, int]) -> Outline:
    """A run that began with the epoch."""
    chains = replace(
        chains_of(list(zip(stays.start.tolist(), stays.end.tolist(), stays.status.tolist(), strict=True))),
        replica=stays.numbers[stays.replica],
    )
    run = replace(UNKNOWN, batch_size=batch_size)
    axis = Axis(0, tuple((since * S, until * S) for since, until in pauses))
    return Outline(run=run, axis=axis, span=int(stays.end.max(initial=0)), engines=("d",), chains=chains, whole=True)


def busy(*spans: tuple[int, int], **engines: float) -> ReplicaTime:
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    return ReplicaTime(engines, 0.0, (starts * S, ends * S))


def test_the_tail_of_two_replicas_by_hand() -> None:
    #     0 1 2 3 4 5 6 7 8 9
    # 0   [= = =][= = = =]      two at once until 6, then one until 7
    # 0   [= = = = = =]
    # 1   [= = = = =]           two at once until 5, when no problem waits: the last one was admitted at 4
    # 1   [= = = =][= = = = =]  ends at 9
    stays = stays_of((0, 3, 0), (3, 7, 0), (0, 6, 0), (0, 5, 1), (0, 4, 1), (4, 9, 1))
    assert tail(stays, 2) == (5 * S, 9 * S)
    times = {0: busy((0, 7), d=6, t=3), 1: busy((0, 6), (8, 9), d=2, t=1)}
    found = imbalance(outline_of(stays, 2), stays, times)
    assert (found.replicas, found.busy, found.chains, found.tail_s) == (2, 9 / 6, 1.0, 4)
    assert found.tail_idle_share == pytest.approx(1 - (2 + 1 + 1) / 8)


def test_one_that_waits_in_vain_begins_the_tail_although_others_still_begin_chains() -> None:
    rows = [(0, 2, 0), (0, 5, 1), (5, 9, 1)]
    assert tail(stays_of(*rows), 1) == (2 * S, 9 * S)
    assert tail(stays_of(*rows, lost=[0]), 1) == (5 * S, 9 * S), "a replica that was lost lacked chains for another reason"
    assert tail(stays_of(*rows[1:], numbers=[0, 1]), 1) == (5 * S, 9 * S), "as one that never began any"


def test_pauses_between_sessions_are_no_part_of_it() -> None:
    stays = stays_of((0, 10, 0), (0, 17, 1))  # in seconds of work
    times = {0: busy((0, 10), d=10), 1: busy((0, 12), (15, 20), d=17)}
    found = imbalance(outline_of(stays, 1, (12, 15)), stays, times)
    assert (found.tail_s, found.tail_idle_share) == (7, 0.5)


def test_no_chain_was_on_a_replica() -> None:
    stays = stays_of(numbers=[0, 1])
    found = imbalance(outline_of(stays_of((0, 1, 0)), 4), stays, {0: busy(), 1: busy()})
    assert [found.busy, found.tail_s, found.tail_idle_share] == [None] * 3


def chain(row: tuple[int, int, int]) -> Row:
    start, length, replica = row
    return start, start + length, replica


lives = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(0, 2)).map(chain), min_size=1)


@given(lives, st.integers(1, 4))
def test_a_plain_loop_says_the_same(rows: list[Row], batch_size: int) -> None:
    over = max(end for _, end, _ in rows)
    begins = over
    for replica in {replica for _, _, replica in rows}:
        mine = [(start, end) for start, end, number in rows if number == replica]
        live = [sum(start <= second < end for start, end in mine) for second in range(over + 1)]
        full, admitted = min(batch_size, max(live)), max(start for start, _ in mine)
        begins = min(begins, next(second for second in range(admitted, over + 1) if live[second] < full))
    assert tail(stays_of(*rows), batch_size) == (begins * S, over * S)


@given(st.integers(1, 4), st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_one_replica_has_the_tail_of_one_process(batch_size: int, lengths: list[int]) -> None:
    """Chains that are admitted whenever one ends."""
    ends: list[int] = []
    rows: list[Row] = []
    for length in lengths:
        start = sorted(ends)[-batch_size] if len(ends) >= batch_size else 0
        ends.append(start + length)
        rows.append((start, start + length, 0))
    stays = stays_of(*rows)
    found: Any = tail(stays, batch_size)
    assert (found[1] - found[0]) / S == tail_time_s(np.sort(stays.start), np.sort(stays.end), batch_size)
