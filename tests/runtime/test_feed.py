"""Which chain begins next."""

from collections.abc import Callable, Sequence

import pytest

from pipeline.data.problems import ChainSettings, Problem
from pipeline.runtime.admission.feed import READ_AHEAD, InputFeed, Item, Start

pytestmark = pytest.mark.anyio


async def taken(items: Sequence[Item], samples: int, places: int, is_over: Callable[[int], bool], *, threads: bool = False) -> list[Start]:
    feed, found = InputFeed(items, samples, places, is_over, threads=threads), list[Start]()
    while (start := await feed.next()) is not None:
        found.append(start)
    return found


@pytest.mark.parametrize("threads", [False, True])
async def test_the_input_is_read_to_its_end(threads: bool) -> None:
    items = [Problem(row, str(row), "x", None) for row in range(1, 2 * READ_AHEAD + 2)]
    starts = await taken(items, 1, 1, range(READ_AHEAD, 2 * READ_AHEAD).__contains__, threads=threads)
    assert [start.item.row for start in starts] == [*range(1, READ_AHEAD + 1), 2 * READ_AHEAD + 1]


async def test_samples_stand_side_by_side_and_a_problem_may_say_how_many_it_has() -> None:
    items: list[Item] = [Problem(row, str(row), "x", None, settings=ChainSettings(samples=own)) for row, own in ((1, 1), (2, None), (3, 3))]
    starts = await taken(items, 2, 3, {3, 7, 8}.__contains__)
    assert [(start.item.problem_id, start.sample_index, start.order) for start in starts] == [("1", 0, 0), ("2", 1, 4), ("3", 0, 6)]
