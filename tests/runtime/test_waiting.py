"""Gates open, and deadlines give up what they must and nothing else."""

from collections.abc import Awaitable

import anyio
import pytest

from pipeline.runtime.waiting import Deadlines, Expired, new_gate


async def outcome(deadlines: Deadlines, answer: Awaitable[str], deadline: float, said: list[str]) -> None:
    try:
        said.append(await deadlines.wait_for(answer, deadline))
    except Expired:
        said.append("expired")
    await anyio.lowlevel.checkpoint()  # a task that was interrupted once is not interrupted again
    said.append("went on")


async def answered(event: anyio.Event) -> str:
    await event.wait()
    return "answered"


def test_what_is_not_answered_by_its_deadline_is_given_up_and_nothing_else() -> None:
    async def main() -> list[list[str]]:
        deadlines, event, first, second = Deadlines(), anyio.Event(), [], []
        assert deadlines.next is None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome, deadlines, answered(anyio.Event()), 1.0, first)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(outcome, deadlines, answered(event), 2.0, second)
            await anyio.wait_all_tasks_blocked()
            assert deadlines.next == 1.0
            deadlines.expire(0.9)
            await anyio.wait_all_tasks_blocked()
            assert first == []
            deadlines.expire(1.0)
            await anyio.wait_all_tasks_blocked()
            assert deadlines.next == 2.0
            event.set()
        assert deadlines.next is None
        return [first, second]

    assert anyio.run(main) == [["expired", "went on"], ["answered", "went on"]]


def test_deadlines_are_postponed_together() -> None:
    async def main() -> list[str]:
        deadlines, said = Deadlines(), []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome, deadlines, answered(anyio.Event()), 1.0, said)
            await anyio.wait_all_tasks_blocked()
            deadlines.postpone(5.0)
            deadlines.expire(5.9)
            assert deadlines.next == 6.0
            deadlines.expire(6.0)
        return said

    assert anyio.run(main) == ["expired", "went on"]


@pytest.mark.parametrize("expires", [False, True])
def test_a_task_that_is_cancelled_ends_also_where_its_deadline_passes_with_it(expires: bool) -> None:
    async def main() -> list[str]:
        deadlines, said = Deadlines(), []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome, deadlines, answered(anyio.Event()), 1.0, said)
            await anyio.wait_all_tasks_blocked()
            if expires:
                deadlines.expire(1.0)
            tasks.cancel_scope.cancel()
        assert deadlines.next is None
        return said

    assert "went on" not in anyio.run(main)


def test_an_error_of_the_answer_is_raised_as_it_is() -> None:
    async def wrong() -> str:
        raise ValueError("wrong")

    async def main() -> None:
        deadlines = Deadlines()
        with pytest.raises(ValueError, match="wrong"):
            await deadlines.wait_for(wrong(), 1.0)
        assert deadlines.next is None

    anyio.run(main)


def test_a_gate_lets_its_task_go_on() -> None:
    async def main() -> list[str]:
        gate, said = new_gate(), []

        async def wait() -> None:
            await gate
            said.append("through")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert (said, gate.done()) == ([], False)
            gate.set_result(None)
        assert gate.done()
        return said

    assert anyio.run(main) == ["through"]


def test_a_gate_whose_task_was_cancelled_is_no_longer_opened() -> None:
    async def main() -> None:
        gate = new_gate()

        async def wait() -> None:
            await gate

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        if not gate.done():
            gate.set_result(None)
        assert gate.done()

    anyio.run(main)
