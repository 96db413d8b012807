"""Signals that ask the run to stop. The first lets live chains end, for a bounded time; the second stops at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

from pipeline.errors import Interrupted

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DRAIN_S = 10.0
"""Longest time that live chains get to end in, by the run's clock. What is not done then is taken up again on resume."""


@contextmanager
def restored_handlers() -> Iterator[None]:
    """Leave the handlers of `STOP_SIGNALS` as they were."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


async def stop_on_signal(drain: Callable[[], bool], *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Raise `Interrupted`: at a second signal, `DRAIN_S` after the first, or at the first where `drain` says that there is
    nothing to wait for. Until then whoever runs it may cancel it, because the chains are over."""
    with anyio.open_signal_receiver(*STOP_SIGNALS) as signals:
        task_status.started()
        await anext(signals)
        if drain():
            with anyio.move_on_after(DRAIN_S):
                await anext(signals)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # a further one would lose the rows that are being written
    raise Interrupted
