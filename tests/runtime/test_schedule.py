"""Turns of chains under each schedule, on virtual time."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runtime.admission.admission import Admission
from pipeline.runtime.admission.cache import CacheLimit
from pipeline.runtime.schedule import Lockstep, Schedule
from pipeline.runtime.virtual_loop import VirtualLoop

Level = tuple[int, float, int] | tuple[int, float]
"""A rank, seconds, and the tokens of the context before it."""
LEVELS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(1, 200)), min_size=1, max_size=4)


def admission(tokens: float) -> Admission:
    return Admission([CacheLimit(role="t", tokens=tokens)])


def play(schedule: Schedule, chains: Mapping[Any, Sequence[Level]], gives_up: Mapping[Any, float | None] = {}) -> list[tuple[Any, ...]]:
    """Run chains until all are over, or give up at their moment; returns when each level began, of whom, its rank, and its end."""
    log: list[tuple[Any, ...]] = []

    async def chain(name: Any, member: Any) -> None:
        patience = gives_up.get(name)
        with anyio.move_on_after(patience):
            for rank, seconds, *tokens in chains[name]:
                await schedule.before_level(rank, member, {"t": range(*tokens or [1])})
                began = anyio.current_time()
                try:
                    await anyio.sleep(seconds)
                finally:
                    log.append((began, name, rank, anyio.current_time()))
        schedule.leave(member)

    async def main() -> None:
        with anyio.fail_after(10_000):  # where chains wait for one another
            async with anyio.create_task_group() as tasks:
                for name in chains:
                    tasks.start_soon(chain, name, await schedule.enter())
                    assert schedule.live <= schedule.batch_size
                schedule.exhausted()

    anyio.run(main, backend_options={"loop_factory": VirtualLoop})
    assert schedule.live == 0
    return sorted(log)


def begun(log: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [each[:3] for each in log]


def test_pipelined_chains_wait_for_nobody_and_enter_as_soon_as_one_is_done() -> None:
    log = play(Schedule(2), {"a": [(1, 1), (2, 1)], "b": [(1, 5), (2, 1)], "c": [(1, 1)]})
    assert begun(log) == [(0, "a", 1), (0, "b", 1), (1, "a", 2), (2, "c", 1), (5, "b", 2)]


def test_lockstep_runs_a_phase_for_all_before_the_next() -> None:
    log = play(Lockstep(2), {"a": [(1, 1), (2, 1), (1, 1)], "b": [(1, 5), (2, 2), (3, 4), (1, 1)]})
    assert begun(log) == [(0, "a", 1), (0, "b", 1), (5, "a", 2), (5, "b", 2), (7, "b", 3), (11, "a", 1), (11, "b", 1)]


def test_lockstep_admits_only_at_the_start_of_a_round() -> None:
    log = play(Lockstep(2), {"a": [(1, 1)], "b": [(1, 1), (2, 3), (1, 1)], "c": [(0, 1), (1, 1)]})
    assert begun(log) == [(0, "a", 1), (0, "b", 1), (1, "b", 2), (4, "c", 0), (5, "b", 1), (5, "c", 1)]


@pytest.mark.parametrize("kind", [Schedule, Lockstep])
def test_a_chain_that_pauses_waits_and_holds_nobody_up(kind: type[Schedule]) -> None:
    chains = {"a": [(1, 1, 50), (1, 1, 60), (1, 1, 70)], "b": [(1, 1, 30), (1, 1, 40), (1, 1, 41)]}
    log = play(kind(2, admission(100)), chains)
    assert begun(log) == [(0, "a", 1), (0, "b", 1), (1, "a", 1), (2, "a", 1), (3, "b", 1), (4, "b", 1)]


@given(
    st.sampled_from([Schedule, Lockstep]),
    st.integers(1, 4),
    st.sampled_from([None, 1, 150, 1000]),
    st.lists(st.tuples(LEVELS, st.none() | st.integers(0, 9)), min_size=1, max_size=9),
)
def test_every_chain_comes_to_its_end_in_whatever_room_and_whoever_gives_up(kind: Any, batch: int, tokens: int | None, given: Any) -> None:
    """Levels of two chains overlap only where the batch has room for both; in lockstep, only those of one rank."""
    chains = {number: levels for number, (levels, _) in enumerate(given)}
    gives_up = {number: moment for number, (_, moment) in enumerate(given)}
    log = play(kind(batch, None if tokens is None else admission(tokens)), chains, gives_up)
    for number, levels in chains.items():
        ran = [rank for _, who, rank, _ in log if who == number]
        assert ran == [rank for rank, *_ in levels] or (gives_up[number] is not None and ran == [rank for rank, *_ in levels[: len(ran)]])
    for (begins, _, first, end), (start, _, second, ends) in combinations(log, 2):
        if start < end and begins < ends:
            assert batch > 1 if kind is Schedule else first == second


@pytest.mark.anyio
async def test_a_chain_that_is_shorter_than_was_expected_lets_another_enter() -> None:
    schedule = Schedule(9, admission(1000))
    await schedule.before_level(0, await schedule.enter(), {"t": range(450)})
    second = await schedule.enter()  # expected to have 450 tokens, too
    async with anyio.create_task_group() as chains:
        chains.start_soon(schedule.enter)
        await anyio.wait_all_tasks_blocked()
        assert schedule.live == 2
        await schedule.before_level(0, second, {"t": range(10)})
    assert schedule.live == 3
