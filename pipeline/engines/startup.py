"""What engines tell the user about themselves: phases of their start, and lines that their programs print.

The start of a large model takes minutes, so its progress should be visible. A backend tells the `current_listener` of the task that opens
its engines; the program of a worker sends its phases while it loads. Without a listener nothing happens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

READY = "ready"
"""The last phase of a start."""


class Listener:
    """Hears what engines say of themselves; this one does nothing with it."""

    verbose = False
    """True if programs should log what they do, besides warnings."""

    def phase(self, role: str, phase: str) -> None:
        """The engine `role` begins with this phase of its start, such as `loading weights`; the last one is `READY`."""

    def output(self, role: str, line: str) -> None:
        """The process of the engine `role` has printed this line."""


_NOBODY = Listener()
_listener: ContextVar[Listener] = ContextVar("listener", default=_NOBODY)


def current_listener() -> Listener:
    """Who hears of engines that are opened now."""
    return _listener.get()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let `listener` hear of the engines that are opened in this block, until their ends."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
