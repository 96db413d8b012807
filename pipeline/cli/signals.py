"""Signals that ask a run to stop. The first lets live chains end, for a bounded time; the second stops at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from pipeline.cli.main import print_notice
from pipeline.session.stop import Stop

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DRAIN_S = 10.0
"""Longest time that live chains get to end in, by the run's clock. What is not done then is taken up again on resume."""
DRAINING = f"interrupted: live chains get {DRAIN_S:g} s to end; interrupt again to stop now"


@contextmanager
def restored_handlers() -> Iterator[None]:
    """Leave the handlers of `STOP_SIGNALS` as they were."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


async def stop_on_signal(stop: Stop, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Abort the run at a second signal, `DRAIN_S` after the first, or at the first where there is nothing to drain. Until then
    whoever runs it may cancel it, because the chains are over."""

    with anyio.open_signal_receiver(*STOP_SIGNALS) as signals:
        task_status.started()
        await anext(signals)
        if stop.drain():
            print_notice(DRAINING)
            with anyio.move_on_after(DRAIN_S):
                await anext(signals)
    _abort(stop)


async def stop_at_first_signal(stop: Stop, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Abort at the first signal, where what is under way is not worth waiting for: a point of a sweep is run again from its start."""
    with anyio.open_signal_receiver(*STOP_SIGNALS) as signals:
        task_status.started()
        await anext(signals)
    _abort(stop)


def _abort(stop: Stop) -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a further one would lose the rows that are being written
    stop.abort()
