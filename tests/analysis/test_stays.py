"""Which chain was on which replica, and when: by hand, also of chains that went on elsewhere, and against a plain loop."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.analysis.time.outline import read_whole_outline
from pipeline.analysis.time.stays import read_stays
from tests.support.runs import solve
from tests.support.traces import S, call, card, chain, write

Stay = tuple[int, int, float, float]
"""Replica, index of the chain, start, end."""


def stays_of(folder: Path) -> list[Stay]:
    found = read_stays(folder, read_whole_outline(folder))
    assert found is not None
    rows = zip(found.replica.tolist(), found.chain.tolist(), found.start.tolist(), found.end.tolist(), strict=True)
    return [(int(found.numbers[place]), index, start / S, end / S) for place, index, start, end in rows]


def test_chains_that_stay_and_one_that_went_on_elsewhere(tmp_path: Path) -> None:
    # a   0 [=========]        ended on 0
    # b   0 [===]              replica 0 let it go; its first call was ready at 1
    # b   1      [======]      ended on 1
    calls = [
        call("a", "d", 0, 0, 9, replica=0),
        call("b", "d", 1, 2, 4, replica=0),
        call("b", "t", 5, 5, 8, replica=1),
    ]
    rows = [chain("a", 0, 9, replica=0), chain("b", 0, 8, replica=1)]
    assert stays_of(write(tmp_path, calls=calls, chains=rows, card=card(0, 10))) == [(0, 0, 0, 9), (0, 1, 1, 4), (1, 1, 4, 8)]


def test_a_chain_without_a_row_is_where_its_last_call_was(tmp_path: Path) -> None:
    calls = [call("a", "d", 0, 0, 2, replica=3), call("b", "d", 1, 1, 4, replica=3), call("a", "d", 2, 3, 5, replica=7)]
    assert stays_of(write(tmp_path, calls=calls, closed=False)) == [(3, 0, 0, 2), (3, 1, 1, 5), (7, 0, 2, 5)]


def test_replicas_that_were_started_count_and_those_that_never_were_do_not(tmp_path: Path) -> None:
    replicas = [{"starts": 1}, {"starts": 0}, {"starts": 2}]
    sessions = [session | {"replicas": replicas} for session in card(0, 9)["sessions"]]
    folder = write(
        tmp_path, calls=[call("a", "d", 0, 0, 1, replica=0)], chains=[chain("a", 0, 1, replica=0)], card=card(0, 9, sessions=sessions)
    )
    found = read_stays(folder, read_whole_outline(folder))
    assert found is not None
    assert found.numbers.tolist() == [0, 2]
    assert [len(found.lives(place).start) for place in range(2)] == [1, 0]


def test_when_no_more_problems_waited_for_a_replica(tmp_path: Path) -> None:
    # 0 began a and b and let b go; 1 began c and got b; 2 was lost after d
    calls = [call("b", "d", 3, 3, 4, replica=0)]
    rows = [chain("a", 0, 5, replica=0), chain("b", 3, 9, replica=1), chain("c", 1, 2, replica=1), chain("d", 2, 3, replica=2)]
    replicas = [{"starts": 1}, {"starts": 1}, {"starts": 2, "losses": ["gone"]}, {"starts": 1}]
    sessions = [session | {"replicas": replicas} for session in card(0, 9)["sessions"]]
    folder = write(tmp_path, calls=calls, chains=rows, card=card(0, 9, sessions=sessions))
    found = read_stays(folder, read_whole_outline(folder))
    assert found is not None
    assert (found.admitted / S).tolist() == [3, 1, 3, 3]


def test_a_run_of_one_process_or_one_replica_has_none(tmp_path: Path, replica_runs: dict[int, Path]) -> None:
    for folder in (solve(tmp_path).folder, replica_runs[1]):
        assert read_stays(folder, read_whole_outline(folder)) is None


def plain(calls: Any, chains: Any) -> list[Stay]:
    """Chain by chain, call by call."""
    found = []
    for index, (start, end, home) in enumerate(chains):
        away: dict[int, tuple[int, int]] = {}
        for owner, replica, since, until in calls:
            if owner == index and replica != home:
                first, last = away.get(replica, (since, until))
                away[replica] = min(first, since), max(last, until)
        came = max([start, *(last for _, last in away.values())])
        found += [(replica, index, first, max(first, last)) for replica, (first, last) in away.items()]
        found.append((home, index, min(came, end), end))
    return sorted(found)


instants = st.integers(0, 9)
spans = st.tuples(instants, instants).map(sorted)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), spans), max_size=12),
    st.lists(st.tuples(spans, st.integers(0, 2)), min_size=4, max_size=4),
)
def test_a_plain_loop_says_the_same(tmp_path_factory: pytest.TempPathFactory, calls: Any, chains: Any) -> None:
    rows = [call(f"c{owner}", "d", since, since, until, replica=replica) for owner, replica, (since, until) in calls]
    ended = [chain(f"c{index}", *span, replica=home) for index, (span, home) in enumerate(chains)]
    replicas = [{"starts": 1}] * 3
    sessions = [session | {"replicas": replicas} for session in card(0, 9)["sessions"]]
    folder = write(tmp_path_factory.mktemp("run"), calls=rows, chains=ended, card=card(0, 9, sessions=sessions))
    told = [(owner, replica, *span) for owner, replica, span in calls]
    assert sorted(stays_of(folder)) == plain(told, [(*span, home) for span, home in chains])
