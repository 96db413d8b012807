"""Signals that ask a run to stop. The first lets live chains end, for a bounded time; the second stops at once.

A signal that was ignored when the program started stays ignored, as POSIX wants it: `nohup` ignores SIGHUP, and a shell that is not
interactive ignores SIGINT in background jobs. While no run listens, Ctrl-C is a `KeyboardInterrupt`.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio

from pipeline.cli.terminal import print_notice
from pipeline.run.loop import Stop

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""The last two are what batch systems announce the end of a job's time with, as Slurm does with `--signal=USR1@120`."""
DRAIN_S = 10.0
"""Seconds, by the run's clock, that live chains get to end in. Those that do not end are solved further on resume."""
DRAINING = f"interrupted: waiting up to {DRAIN_S:g} s for running chains; interrupt again to stop now"


@contextmanager
def restored_handlers() -> Iterator[None]:
    """Restore the handlers of `STOP_SIGNALS` at the end, when no run listens any more."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


async def stop_on_signal(stop: Stop, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Drain the run at the first signal; abort it at the second, `DRAIN_S` after the first, or at once where nothing can be drained.

    A task beside a run: it is cancelled when the run is over.
    """
    with _received() as next_signal:
        task_status.started()
        await next_signal()
        if stop.drain():
            print_notice(DRAINING)
            with anyio.move_on_after(DRAIN_S):
                await next_signal()
    _abort(stop)


async def stop_at_first_signal(stop: Stop, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Abort the run at the first signal: for a sweep, which repeats an interrupted point from its start anyway."""
    with _received() as next_signal:
        task_status.started()
        await next_signal()
    _abort(stop)


@contextmanager
def _received() -> Iterator[Callable[[], Awaitable[signal.Signals]]]:
    """A function that waits for the next of `STOP_SIGNALS` that were not ignored before."""
    heeded = [number for number in STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    loop, received = asyncio.get_running_loop(), asyncio.Queue[signal.Signals]()
    for number in heeded:
        loop.add_signal_handler(number, received.put_nowait, number)
    try:
        yield received.get
    finally:
        for number in heeded:
            loop.remove_signal_handler(number)


def _abort(stop: Stop) -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a further one would lose the rows that are being written
    stop.abort()
