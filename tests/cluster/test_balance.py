"""Which chains move, once none waits for a replica."""

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.cluster.balance import Load, Move, moves
from pipeline.session.execute import SessionResult
from tests.support.fated_replicas import Fate, always, check_whole, on_replicas, options_of, places
from tests.support.runs import rows


def load(number: int, chains: int, speed: float | None = 100.0, batch_size: int = 8) -> Load:
    return Load(number=number, chains=chains, batch_size=batch_size, tokens_per_s=speed)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([], []),
        ([load(0, 8)], []),
        ([load(0, 8), load(1, 8)], []),
        ([load(0, 8), load(1, 5)], []),
        ([load(0, 8), load(1, 3)], [Move(0, 2, slow=False)]),
        ([load(0, 8), load(1, 2)], [Move(0, 3, slow=False)]),
        ([load(0, 8), load(1, 0)], [Move(0, 4, slow=False)]),
        ([load(0, 9), load(1, 9), load(2, 0)], [Move(0, 3, slow=False), Move(1, 3, slow=False)]),
        ([load(0, 2), load(1, 0)], [Move(0, 1, slow=False)]),
        ([load(0, 1), load(1, 0)], []),
        ([load(0, 4, 10.0), load(1, 6), load(2, 7)], [Move(0, 3, slow=True)]),
        ([load(0, 4, 10.0), load(1, 8), load(2, 9)], []),
        ([load(0, 4, 50.0), load(1, 4), load(2, 4)], []),
        ([load(0, 4, None), load(1, 4), load(2, 4)], []),
        ([load(0, 1, 20.0), load(1, 4, 10.0), load(2, 6), load(3, 6), load(4, 6)], [Move(1, 4, slow=True), Move(0, 1, slow=True)]),
        ([load(0, 0, 10.0), load(1, 6), load(2, 7)], []),
    ],
)
def test_moves(loads: list[Load], expected: list[Move]) -> None:
    assert moves(loads) == expected


LOADS = st.lists(st.tuples(st.integers(0, 20), st.one_of(st.none(), st.floats(0, 1000))), min_size=1, max_size=8).map(
    lambda each: [load(number, chains, speed, 16) for number, (chains, speed) in enumerate(each)]
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(LOADS)
def test_no_replica_gives_more_than_it_has_and_the_others_have_room_for_all(loads: list[Load]) -> None:
    found = moves(loads)
    givers = {move.replica: move for move in found}
    assert len(givers) == len(found)
    assert all(0 < move.count <= loads[move.replica].chains for move in found)
    room = sum(max(0, each.batch_size - each.chains) for each in loads if each.number not in givers)
    assert sum(move.count for move in found) <= room


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 8), st.integers(0, 18))
def test_nothing_moves_where_all_are_even(count: int, chains: int) -> None:
    assert moves([load(number, chains + number % 2) for number in range(count)]) == []


@settings(max_examples=50, deadline=None, derandomize=True)
@example([load(0, 0, 0.0, 16), load(1, 0, 1.0, 16), load(2, 0, 1.0, 16), load(3, 3, 0.0, 16)])
@given(LOADS)
def test_moves_come_to_an_end(loads: list[Load]) -> None:
    """Carried out again and again, to the emptiest others that a chain has not left as too slow, they leave nothing to move."""
    chains: dict[int, list[frozenset[int]]] = {each.number: [frozenset()] * each.chains for each in loads}  # what each chain avoids
    for _ in range(20):
        found = moves([load(each.number, len(chains[each.number]), each.tokens_per_s, 16) for each in loads])
        if not found:
            return
        givers = {move.replica for move in found}
        for move in found:
            for _ in range(move.count):
                avoids = chains[move.replica].pop() | ({move.replica} if move.slow else set())
                others = [each for each in chains if each not in givers | avoids] or [each for each in chains if each not in givers]
                chains[min(others, key=lambda each: len(chains[each]))].append(avoids)
    raise AssertionError("chains move for ever")


def test_a_slow_replica_gives_its_chains_to_others_at_the_end(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    options, fates = options_of(tmp_path, "run", problems, replicas=3), always(r0=Fate(rates=0.05))
    result = on_replicas(options, fates)
    check_whole(result, calm)
    assert any(each[0] == 0 and len(each) > 1 for each in places(result).values())
    assert result.run.sessions[-1].wall_time_s is not None
    assert result.run.sessions[-1].wall_time_s < 12


def test_without_balancing_a_slow_replica_keeps_its_chains(problems: Path, calm: SessionResult, tmp_path: Path) -> None:
    result = on_replicas(options_of(tmp_path, "run", problems, replicas=3), always(r0=Fate(rates=0.05)), balanced=False)
    check_whole(result, calm)
    assert {len(each) for each in places(result).values()} == {1}
    assert result.run.sessions[-1].wall_time_s is not None
    assert result.run.sessions[-1].wall_time_s > 20


def test_responses_that_are_being_written_do_not_move_between_equal_replicas(problems: Path, tmp_path: Path) -> None:
    options = options_of(tmp_path, "run", problems, graph="target", settings=("engines.*.text.steps_mean=60",), replicas=3, batch_size=4)
    result = on_replicas(options)
    assert result.run.sessions[-1].wall_time_s is not None
    assert result.run.sessions[-1].wall_time_s > 20
    assert {len(each) for each in places(result).values()} == {1}
    assert {row["error_type"] for row in rows(result, "calls")} == {None}
