"""Gates open, and the answers are given up that must be, and no others."""

from collections.abc import Awaitable

import anyio
import pytest

from pipeline.runtime.waiting import Awaited, GivenUp, new_gate

pytestmark = pytest.mark.anyio
blocked = anyio.wait_all_tasks_blocked


async def outcome(awaited: Awaited, answer: Awaitable[str], asked: float, said: list[str]) -> None:
    try:
        said.append(await awaited.wait_for(answer, asked))
    except GivenUp as reason:
        said.append(str(reason))
    await anyio.lowlevel.checkpoint()  # a task that was interrupted once is not interrupted again
    said.append("went on")


async def answered(event: anyio.Event) -> str:
    await event.wait()
    return "answered"


async def test_what_was_asked_for_too_long_ago_is_dropped_and_nothing_else() -> None:
    awaited, event, first, second = Awaited(), anyio.Event(), list[str](), list[str]()
    assert awaited.oldest is None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outcome, awaited, answered(anyio.Event()), 1.0, first)
        await blocked()
        tasks.start_soon(outcome, awaited, answered(event), 2.0, second)
        await blocked()
        assert awaited.oldest == 1.0
        awaited.give_up(0.9, "too late")
        await blocked()
        assert first == []
        awaited.give_up(1.0, "too late")
        await blocked()
        assert awaited.oldest == 2.0
        event.set()
    assert awaited.oldest is None
    assert (first, second) == (["too late", "went on"], ["answered", "went on"])


async def test_all_count_as_asked_for_later() -> None:
    awaited, said = Awaited(), list[str]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outcome, awaited, answered(anyio.Event()), 1.0, said)
        await blocked()
        awaited.postpone(5.0)
        awaited.give_up(5.9, "too late")
        assert awaited.oldest == 6.0
        awaited.give_up(6.0, "too late")
    assert said == ["too late", "went on"]


@pytest.mark.parametrize("expires", [False, True])
async def test_a_task_that_is_cancelled_ends_also_where_it_is_dropped_at_once(expires: bool) -> None:
    awaited, said = Awaited(), list[str]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outcome, awaited, answered(anyio.Event()), 1.0, said)
        await blocked()
        if expires:
            awaited.give_up(1.0, "too late")
        tasks.cancel_scope.cancel()
    assert awaited.oldest is None
    assert "went on" not in said


async def test_an_error_of_the_answer_is_raised_as_it_is() -> None:
    async def wrong() -> str:
        raise ValueError("wrong")

    awaited = Awaited()
    with pytest.raises(ValueError, match="wrong"):
        await awaited.wait_for(wrong(), 1.0)
    assert awaited.oldest is None


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_gate_lets_its_task_go_on_and_is_done_where_that_was_cancelled(cancelled: bool) -> None:
    gate, said = new_gate(), list[str]()

    async def wait() -> None:
        await gate
        said.append("through")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await blocked()
        assert (said, gate.done()) == ([], False)
        if cancelled:
            tasks.cancel_scope.cancel()
        else:
            gate.set_result(None)
    assert gate.done()
    assert said == ([] if cancelled else ["through"])
