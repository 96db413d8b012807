"""Virtual time stands still while anything can go on, and jumps to the next deadline when nothing can."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio import lowlevel, to_thread
from trio.testing import MockClock

from pipeline.runtime.virtual_clock import VirtualClock

CLOCKS: tuple[Callable[[], Any], ...] = (VirtualClock, lambda: MockClock(autojump_threshold=0))


def events(clock: Any) -> list[tuple[str, float]]:
    """Who was awake when, of some tasks that sleep, wait for each other and are cancelled."""
    seen: list[tuple[str, float]] = []
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

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(sleeper, "often", *[0.1] * 7)
            group.start_soon(sleeper, "seldom", 3600.0, 1e-9)
            group.start_soon(listener)

    anyio.run(main, backend="trio", backend_options={"clock": clock})
    return seen


def test_hours_pass_as_on_trios_own_clock_to_the_last_bit() -> None:
    ours, theirs = (events(make()) for make in CLOCKS)
    assert ours == theirs
    assert ours[-1] == ("seldom", 3600.0 + 1e-9)
    assert ("out of time", sum([0.1] * 7) + (0.1 + 0.2)) in ours


@pytest.mark.parametrize("work", [1, 1000])
def test_no_time_passes_while_something_can_go_on(work: int) -> None:
    async def main() -> float:
        for _ in range(work):
            await lowlevel.checkpoint()
        return anyio.current_time()

    assert anyio.run(main, backend="trio", backend_options={"clock": VirtualClock()}) == 0.0


def test_a_thread_is_waited_for_where_nothing_is_due() -> None:
    async def main() -> tuple[int, float]:
        return await to_thread.run_sync(lambda: 7), anyio.current_time()

    assert anyio.run(main, backend="trio", backend_options={"clock": VirtualClock()}) == (7, 0.0)
