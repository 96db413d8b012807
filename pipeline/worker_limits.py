"""What a worker does first in its own process: it leaves signals to the main process, and limits what it may use as far as the system can.

Not every system can: macOS has a limit on address space that it refuses to set (`ValueError: current limit exceeds maximum limit`). The
limit on computing time, of which these workers die themselves, is on all of them.
"""

import resource
import signal
from contextlib import suppress

LEFT_TO_MAIN = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that a terminal, a batch system or a service manager sends to all processes of a job to let it end in order."""


def leave_signals() -> None:
    """Ignore what asks a run to stop: the main process decides when a worker ends."""
    for number in LEFT_TO_MAIN:
        signal.signal(number, signal.SIG_IGN)


def limit_memory(most: int) -> None:
    """Let this process have at most so many bytes of address space, or what it may have anyway if that is less, and leave no core file."""
    for limit, size in ((resource.RLIMIT_AS, most), (resource.RLIMIT_CORE, 0)):
        with suppress(OSError, ValueError):
            _, hard = resource.getrlimit(limit)
            size = size if hard == resource.RLIM_INFINITY else min(size, hard)
            resource.setrlimit(limit, (size, size))
