"""The answers are given up that must be, and no others."""

from collections.abc import Awaitable

import anyio
import pytest

from pipeline.runtime.retry import Awaited, CallTimeout

pytestmark = pytest.mark.anyio
blocked = anyio.wait_all_tasks_blocked


async def outcome(awaited: Awaited, answer: Awaitable[object], asked: float, said: list[str]) -> None:
    try:
        said.append(str(await awaited.wait_for(answer, asked)))
    except CallTimeout as timeout:
        said.append(str(timeout))
    await anyio.lowlevel.checkpoint()  # a task that was interrupted once is not interrupted again
    said.append("went on")


async def test_what_was_asked_for_too_long_ago_is_dropped_and_nothing_else() -> None:
    awaited, event, first, second = Awaited("draft"), anyio.Event(), list[str](), list[str]()
    assert awaited.oldest is None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outcome, awaited, anyio.sleep_forever(), 1.0, first)
        await blocked()
        tasks.start_soon(outcome, awaited, event.wait(), 2.0, second)
        await blocked()
        assert awaited.oldest == 1.0
        awaited.give_up(0.9, "timeout_s=1")
        await blocked()
        assert first == []
        awaited.give_up(1.0, "timeout_s=1")
        await blocked()
        assert awaited.oldest == 2.0
        event.set()
    assert awaited.oldest is None
    assert (first, second) == (["engine 'draft' did not answer within timeout_s=1", "went on"], ["None", "went on"])


@pytest.mark.parametrize("expires", [False, True])
async def test_a_task_that_is_cancelled_ends_also_where_it_is_dropped_at_once(expires: bool) -> None:
    awaited, said = Awaited("draft"), list[str]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outcome, awaited, anyio.sleep_forever(), 1.0, said)
        await blocked()
        if expires:
            awaited.give_up(1.0, "timeout_s=1")
        tasks.cancel_scope.cancel()
    assert awaited.oldest is None
    assert "went on" not in said
