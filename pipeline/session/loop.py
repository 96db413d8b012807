"""The event loop of a run: asyncio where engines are real, trio on a virtual clock where they are simulated.

No signal handler is set here; whoever owns the process does that (`pipeline.cli.signals`).
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio

from pipeline.runtime.virtual_clock import VirtualClock

T = TypeVar("T")
GC_THRESHOLDS = (50_000, 20, 100)
"""New objects before a collection of the youngest, and how many of those before one of the older ones."""


def in_loop(main: Callable[[], Awaitable[T]], *, virtual: bool) -> T:
    """Run `main` in an event loop of its own, to its end."""
    return anyio.run(main, **backend(virtual))


def backend(virtual: bool) -> dict[str, Any]:
    """What `anyio.run` is told for real or for virtual time."""
    if not virtual:
        return {"backend": "asyncio"}
    return {"backend": "trio", "backend_options": {"clock": VirtualClock()}}


def loop_clock(virtual: bool) -> Callable[[], float]:
    """The clock of the running event loop, seconds, asked directly: it is read several times a call."""
    if not virtual:
        return time.monotonic
    from trio.lowlevel import current_clock

    return current_clock().current_time


def spawn(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Start `main`, which raises nothing, as a task of the running event loop that outlives the task that calls this."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        from trio.lowlevel import spawn_system_task

        spawn_system_task(main)
    else:
        task = loop.create_task(main())
        _TASKS.add(task)
        task.add_done_callback(_TASKS.discard)


_TASKS: set[asyncio.Task[None]] = set()
"""An event loop holds its tasks only weakly."""


def time_is_virtual() -> bool:
    """Does the running event loop live on a virtual clock?"""
    try:
        from trio.lowlevel import current_clock

        return isinstance(current_clock(), VirtualClock)
    except (ImportError, RuntimeError):
        return False


@contextmanager
def rare_collection() -> Iterator[None]:
    """Spare the garbage collector what lives as long as a run. For a process that does nothing else: it holds for all of it.

    Imported modules and live chains are millions of objects, almost none of them garbage; looking at them again and again
    was half of the cost of a call (bench/overhead.py).
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
