"""Signals ask a run to stop, except those that were ignored when it started."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import anyio
import anyio.lowlevel
import pytest

from pipeline.cli.live import DRAINING, STOP_SIGNALS, restored_handlers, stop_at_first_signal, stop_on_signal
from pipeline.run.loop import Stop, in_loop


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    with restored_handlers():
        yield


async def send(number: signal.Signals, has_effect: Callable[[], bool]) -> None:
    """Send the signal to this process and wait for its effect."""
    os.kill(os.getpid(), number)
    with anyio.fail_after(60):
        while not has_effect():
            await anyio.lowlevel.checkpoint()


class Drained(Stop):
    """What becomes of a run that can be drained."""

    drained = False

    def drain(self) -> bool:
        self.drained = True
        return True


@pytest.mark.parametrize(("virtual", "number"), [(False, number) for number in STOP_SIGNALS] + [(True, signal.SIGINT)])
def test_the_first_drains_and_the_second_aborts(virtual: bool, number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        stop = Drained()
        async with anyio.create_task_group() as tasks:
            await tasks.start(stop_on_signal, stop)
            await send(number, lambda: stop.drained)
            assert not stop.aborted
            await send(number, lambda: stop.aborted)

    in_loop(main, virtual=virtual)
    assert capsys.readouterr().err == DRAINING + "\n"


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("ignored", [[signal.SIGHUP, signal.SIGINT], list(STOP_SIGNALS)])
def test_what_was_ignored_at_the_start_stays_ignored(virtual: bool, ignored: list[signal.Signals]) -> None:
    """SIGHUP under nohup, SIGINT in the background of a script."""
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)

    async def main() -> None:
        stop = Drained()
        async with anyio.create_task_group() as tasks:
            await tasks.start(stop_on_signal, stop)
            for number in ignored:
                assert signal.getsignal(number) is signal.SIG_IGN
                os.kill(os.getpid(), number)
            await anyio.wait_all_tasks_blocked()
            assert not stop.drained
            if signal.SIGTERM not in ignored:
                await send(signal.SIGTERM, lambda: stop.drained)
            tasks.cancel_scope.cancel()

    in_loop(main, virtual=virtual)
    assert all(signal.getsignal(number) is signal.SIG_IGN for number in ignored)


def interrupt_from_here() -> None:
    """Let this thread get a signal while the main one waits in its event loop."""
    while sys._current_frames()[threading.main_thread().ident or 0].f_code.co_name != "select":
        os.sched_yield()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


def test_one_that_another_thread_gets_is_heard_at_once() -> None:
    """As is one that comes right before the main thread waits: neither ends the wait by itself."""
    stop = Stop()

    async def main() -> None:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                await tasks.start(stop_at_first_signal, stop)
                threading.Thread(target=interrupt_from_here).start()
        assert stop.aborted

    anyio.run(main)
