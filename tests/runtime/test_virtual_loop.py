"""Virtual time stands still while anything can go on, and jumps to the next timer when nothing can."""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio import lowlevel, to_thread

from pipeline.runtime.virtual_loop import FEW_TIMERS, VirtualLoop


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    return anyio.run(main, backend="asyncio", backend_options={"loop_factory": VirtualLoop})


def test_hours_pass_to_the_last_bit() -> None:
    """Times are the sums that floats give: no timer is called a rounding error early or late."""
    seen: list[tuple[str, float]] = []

    async def main() -> None:
        rung = anyio.Event()

        async def sleeper(name: str, *naps: float) -> None:
            for nap in naps:
                await anyio.sleep(nap)
                seen.append((name, anyio.current_time()))
            rung.set()

        async def listener() -> None:
            await rung.wait()
            seen.append(("rung", anyio.current_time()))
            with anyio.move_on_after(0.1 + 0.2):
                await anyio.sleep_forever()
            seen.append(("out of time", anyio.current_time()))

        async with anyio.create_task_group() as group:
            group.start_soon(sleeper, "often", *[0.1] * 7)
            group.start_soon(sleeper, "seldom", 3600.0, 1e-9)
            group.start_soon(listener)

    run(main)
    passed = [sum([0.1] * count) for count in range(1, 8)]
    rest = [("rung", passed[-1]), ("out of time", passed[-1] + (0.1 + 0.2)), ("seldom", 3600.0), ("seldom", 3600.0 + 1e-9)]
    assert seen == [("often", each) for each in passed] + rest


@pytest.mark.parametrize("work", [1, 1000])
def test_no_time_passes_while_something_can_go_on(work: int) -> None:
    async def main() -> float:
        due = anyio.Event()
        asyncio.get_running_loop().call_later(1e-9, lambda: None)
        asyncio.get_running_loop().call_later(0, due.set)
        while not due.is_set():
            await lowlevel.checkpoint()
        for _ in range(work):
            await lowlevel.checkpoint()
        return anyio.current_time()

    assert run(main) == 0.0


def test_timers_of_one_moment_are_called_in_the_order_in_which_they_were_set_and_can_cancel_each_other() -> None:
    async def main() -> list[int]:
        loop, called = asyncio.get_running_loop(), list[int]()
        for number in range(5):
            loop.call_at(2.0, called.append, number)
        last = loop.call_at(2.0, called.append, 5)
        loop.call_at(1.0, loop.call_at, 2.0, called.append, 6)
        loop.call_at(2.0, last.cancel)
        first = loop.call_at(2.0, called.append, 7)
        loop.call_at(0.0, first.cancel)  # it is due already
        await anyio.sleep(3.0)
        return called

    # 5 comes before the timer that cancels it.
    assert run(main) == [0, 1, 2, 3, 4, 5, 6]


def test_cancelled_timers_are_forgotten_long_before_their_time() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        kept = [loop.call_at(1e6, lambda: None) for _ in range(3)]
        for _ in range(10 * FEW_TIMERS):
            loop.call_at(1e6, lambda: None).cancel()
        assert not any(timer.cancelled() for timer in kept)
        return len(loop._timers)

    assert run(main) <= FEW_TIMERS


def test_a_thread_is_waited_for_only_where_nothing_is_due_and_a_signal_wakes_it() -> None:
    async def main() -> list[float]:
        times, may_end = list[float](), threading.Event()
        assert await to_thread.run_sync(lambda: 7) == 7
        times.append(anyio.current_time())
        with anyio.open_signal_receiver(signal.SIGUSR1) as signals:
            signal.raise_signal(signal.SIGUSR1)
            assert await anext(signals) is signal.SIGUSR1
        times.append(anyio.current_time())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to_thread.run_sync, may_end.wait)
            await anyio.sleep(60)
            may_end.set()
        return [*times, anyio.current_time()]

    assert run(main) == [0.0, 0.0, 60.0]
