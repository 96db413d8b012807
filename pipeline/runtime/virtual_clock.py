"""The clock of simulated runs: it stands still while some task can go on, and jumps to the next deadline when none can.

To trio what `trio.testing.MockClock(autojump_threshold=0)` is, to the last bit; but a jump costs one pass of the event loop
instead of two, and to look at it costs next to nothing. A thread is not waited for while a deadline is left to jump to.
"""

import math


class VirtualClock:
    """A `trio.abc.Clock`, from 0 s on."""

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None:
        """The event loop begins."""

    def current_time(self) -> float:
        """Seconds."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """How long to sleep when no task can go on before `deadline`: not at all, because it is over by then."""
        if deadline == math.inf:
            return math.inf
        self._now = max(self._now, deadline)
        return 0.0
