"""The clock of simulated runs: it stands still while some task can go on, and jumps to the next deadline when none can.

It shows exactly the times of `trio.testing.MockClock(autojump_threshold=0)`, but a jump costs one pass of the event loop instead
of two, and reading it costs next to nothing. It does not wait for a thread while there is a deadline to jump to.
"""

import math


class VirtualClock:
    """A `trio.abc.Clock` that begins at 0 s."""

    def __init__(self) -> None:
        self._now = 0.0

    def start_clock(self) -> None:
        """See `trio.abc.Clock.start_clock`: the event loop begins, which changes nothing here."""

    def current_time(self) -> float:
        """The virtual time in seconds."""
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """See `trio.abc.Clock.deadline_to_sleep_time`: no task can go on before `deadline`, so the time jumps there and nothing
        sleeps."""
        if deadline == math.inf:
            return math.inf
        self._now = max(self._now, deadline)
        return 0.0
