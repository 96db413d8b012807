"""Ctrl-C from a command's first line to its last, where no run listens to it.

It is a `KeyboardInterrupt`, as Python wants it. Python drops and prints one that comes where nothing can be raised, such as in the
callback of a weak reference: here it is kept for the run that listens next (`pipeline.cli.terminal.signals`).
"""

import signal
import sys
from types import FrameType

kept: list[signal.Signals] = []
"""Signals that came where nothing could be raised and no run listened."""


def keep_interrupts() -> None:
    """Let no `KeyboardInterrupt` be dropped and printed from here on. To be called once, as a command begins."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)  # one that asyncio does not replace by its own
    sys.unraisablehook = _keep_interrupt


def ignore_interrupts() -> None:
    """Let Ctrl-C do nothing from here on: the command is over, and its exit code known."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def keep(number: int, frame: FrameType | None) -> None:
    """A handler that keeps the signal for the run that listens next."""
    kept.append(signal.Signals(number))


def _keep_interrupt(unraisable: "sys.UnraisableHookArgs") -> None:
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        kept.append(signal.SIGINT)
    else:
        sys.__unraisablehook__(unraisable)
