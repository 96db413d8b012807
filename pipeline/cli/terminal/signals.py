"""Signals that ask a run to stop. The first lets live chains end, for a bounded time; the second stops at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from pipeline.cli.main import print_notice
from pipeline.session.stop import Stop

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DRAIN_S = 10.0
"""Most seconds, by the run's clock, that live chains get to end in. Those that do not end are solved further on resume."""
DRAINING = f"interrupted: live chains get {DRAIN_S:g} s to end; interrupt again to stop now"


@contextmanager
def restored_handlers() -> Iterator[None]:
    """Restore the handlers of `STOP_SIGNALS` at the end."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


async def stop_on_signal(stop: Stop, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Drain the run at the first signal; abort it at the second, `DRAIN_S` after the first, or at once where nothing can be drained.

    An `attend` task of `session.run`: it is cancelled when the run is over.
    """

    with anyio.open_signal_receiver(*STOP_SIGNALS) as signals:
        task_status.started()
        await anext(signals)
        if stop.drain():
            print_notice(DRAINING)
            with anyio.move_on_after(DRAIN_S):
                await anext(signals)
    _abort(stop)


async def stop_at_first_signal(stop: Stop, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Abort the run at the first signal: for a sweep, which repeats an interrupted point from its start anyway."""
    with anyio.open_signal_receiver(*STOP_SIGNALS) as signals:
        task_status.started()
        await anext(signals)
    _abort(stop)


def _abort(stop: Stop) -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a further one would lose the rows that are being written
    stop.abort()
