"""Several tasks at once: results in order, one error in place of a group."""

from functools import partial

import anyio
import pytest

from pipeline.errors import EngineDead
from pipeline.tasks import background_tasks, gather, unwrapped


async def after(seconds: float, result: int | Exception) -> int:
    await anyio.sleep(seconds)
    if isinstance(result, Exception):
        raise result
    return result


@pytest.mark.anyio
async def test_results_come_in_the_order_of_the_jobs() -> None:
    assert await gather([partial(after, 3, 1), partial(after, 1, 2), partial(after, 2, 3)]) == [1, 2, 3]
    assert anyio.current_time() == 3
    assert await gather([]) == []


@pytest.mark.anyio
async def test_the_first_error_of_ours_ends_the_others_and_comes_alone() -> None:
    with pytest.raises(EngineDead):
        await gather([partial(after, 9, 1), partial(after, 1, EngineDead("draft", "gone"))])
    assert anyio.current_time() == 1


def test_what_is_not_ours_stays_in_its_group_and_a_cause_is_kept() -> None:
    with pytest.raises(ExceptionGroup), unwrapped():
        raise ExceptionGroup("", [ValueError()])
    dead = EngineDead("draft", "gone")
    dead.__cause__ = OSError("why")
    with pytest.raises(EngineDead) as raised, unwrapped():
        raise ExceptionGroup("", [dead])
    assert isinstance(raised.value.__cause__, OSError)


@pytest.mark.anyio
async def test_background_tasks_end_with_their_block() -> None:
    async with background_tasks() as tasks:
        tasks.start_soon(anyio.sleep, 100)
        await anyio.sleep(2)
    assert anyio.current_time() == 2


async def serve(background: int | Exception, block: int | Exception) -> None:
    async with background_tasks() as tasks:
        tasks.start_soon(after, 1, background)
        await after(2, block)


@pytest.mark.anyio
async def test_an_error_of_the_block_comes_out_as_it_is_and_one_beside_it_in_a_group() -> None:
    mine = KeyError("mine")
    with pytest.raises(KeyError) as raised:
        await serve(0, mine)
    assert raised.value is mine
    with pytest.raises(ExceptionGroup):
        await serve(ValueError(), 0)
