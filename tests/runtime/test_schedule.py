"""Turns of chains under each schedule, on virtual time."""

import anyio
import pytest

from pipeline.runtime.admission.admission import Admission
from pipeline.runtime.admission.cache import CacheLimit
from pipeline.runtime.schedule import Lockstep, Schedule, Sequential

pytestmark = pytest.mark.anyio


async def play(schedule: Schedule, chains: dict[str, list[tuple[int, float]]]) -> list[tuple[float, str, int]]:
    """Run chains of (rank, seconds) levels; returns when each level began."""
    log: list[tuple[float, str, int]] = []

    async def chain(name: str, levels: list[tuple[int, float]]) -> None:
        for rank, seconds in levels:
            await schedule.before_level(rank)
            log.append((anyio.current_time() - origin, name, rank))
            await anyio.sleep(seconds)
        schedule.leave()

    origin = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for name, levels in chains.items():
            await schedule.enter()
            tasks.start_soon(chain, name, levels)
        schedule.exhausted()
    return log


async def test_pipelined_chains_wait_for_nobody_and_enter_as_soon_as_one_is_done() -> None:
    log = await play(Schedule(2), {"a": [(1, 1.0), (2, 1.0)], "b": [(1, 5.0), (2, 1.0)], "c": [(1, 1.0)]})
    assert sorted(log) == [(0, "a", 1), (0, "b", 1), (1, "a", 2), (2, "c", 1), (5, "b", 2)]


async def test_sequential_has_one_chain_at_a_time() -> None:
    assert Sequential(64).batch_size == 1
    log = await play(Sequential(64), {"a": [(1, 1.0), (2, 1.0)], "b": [(1, 1.0)]})
    assert sorted(log) == [(0, "a", 1), (1, "a", 2), (2, "b", 1)]


async def test_lockstep_runs_a_phase_for_all_before_the_next() -> None:
    chains = {"a": [(1, 1.0), (2, 1.0), (1, 1.0)], "b": [(1, 5.0), (2, 2.0), (3, 4.0), (1, 1.0)]}
    log = await play(Lockstep(2), chains)
    assert sorted(log) == [(0, "a", 1), (0, "b", 1), (5, "a", 2), (5, "b", 2), (7, "b", 3), (11, "a", 1), (11, "b", 1)]


async def test_lockstep_admits_only_at_the_start_of_a_round() -> None:
    chains = {"a": [(1, 1.0)], "b": [(1, 1.0), (2, 3.0), (1, 1.0)], "c": [(0, 1.0), (1, 1.0)]}
    log = await play(Lockstep(2), chains)
    assert sorted(log) == [(0, "a", 1), (0, "b", 1), (1, "b", 2), (4, "c", 0), (5, "b", 1), (5, "c", 1)]


async def test_lockstep_goes_on_when_a_waiting_chain_is_cancelled() -> None:
    schedule = Lockstep(2)
    began: list[float] = []

    async def waits(scope: anyio.CancelScope) -> None:
        with scope:
            await schedule.before_level(1)
        schedule.leave()

    async def works() -> None:
        await anyio.sleep(2)
        scope.cancel()
        await schedule.before_level(1)
        began.append(anyio.current_time() - origin)
        schedule.leave()

    origin = anyio.current_time()
    scope = anyio.CancelScope()
    await schedule.enter()
    await schedule.enter()
    schedule.exhausted()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waits, scope)
        tasks.start_soon(works)
    assert began == [2.0]
    assert schedule.live == 0


async def test_a_chain_that_is_shorter_than_was_expected_lets_another_enter() -> None:
    schedule, entered = Schedule(9, Admission([CacheLimit(role="target", tokens=1000)])), list[float]()
    await schedule.before_level(0, await schedule.enter(), {"target": range(450)})
    second = await schedule.enter()  # expected to have 450 tokens, too

    async def third() -> None:
        await schedule.enter()
        entered.append(anyio.current_time() - origin)

    origin = anyio.current_time()
    async with anyio.create_task_group() as chains:
        chains.start_soon(third)
        await anyio.sleep(10)
        await schedule.before_level(0, second, {"target": range(10)})
    assert entered == [10]
