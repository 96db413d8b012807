"""How engines that are busy on one simulated device at the same time slow each other: work enters, times leave.

Synchronous code. Work is measured in the seconds that it takes alone. An engine's scheduler says what it will compute; of events at one
moment those of engines that joined earlier come first.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

from pipeline.engines.sim.scheduler import Scheduler


class Pace(Struct):
    """How fast a busy engine works: it was at `work` at the time `since`, and since then a second of work takes `slowdown` seconds."""

    since: float = 0.0
    work: float = 0.0
    slowdown: float = 1.0
    kernel_s: float = 0.0
    """Mean seconds of one of its kernels, alone; under CUDA MPS."""
    until: float = math.inf
    """Work after which its kernels have another length; under CUDA MPS."""


class Share:
    """One engine on a device: its scheduler, whether it is busy and at which pace, and when a decision about its next iteration was last
    due."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.pace = scheduler, Pace()
        self.busy = False
        self.boundary_clock = -math.inf
        """The clock's time when the engine's last boundary between iterations was handled; work that arrives before the clock moves on
        still joins there."""
        self.boundary_time = -math.inf
        """The exact time of that boundary; the clock may have been read a rounding error later."""
        self.is_cut = False
        """True if the forecast was cut after the iteration under way."""
        self._busy_s = self._since = 0.0

    def busy_s(self, now: float) -> float:
        """Seconds in which the engine computed, until `now`."""
        return self._busy_s + (max(now - self._since, 0.0) if self.busy else 0.0)

    def set_busy(self, busy: bool, now: float) -> None:
        """Become busy or idle at `now`."""
        self._busy_s, self._since = self.busy_s(now), now
        self.busy = busy

    @property
    def next_change(self) -> float:
        """When something happens to an engine that has a forecast: its end, or an earlier change of its pace."""
        return self.time(min(self.scheduler.end, self.pace.until))

    def time(self, work: float) -> float:
        """When the engine comes to `work`, at its pace."""
        pace = self.pace
        return pace.since + (work - pace.work) * pace.slowdown

    def work_at(self, now: float) -> float:
        """The inverse of `time`; never past the end of a forecast, which rounding could do."""
        pace = self.pace
        return min(pace.work + max(now - pace.since, 0.0) / pace.slowdown, pace.until, self.scheduler.end)


def waits(kernels_s: Sequence[float], kernel_wait: float) -> list[float]:
    """How many seconds a second of each engine's work takes if each of its kernels waits for the share `kernel_wait` of a kernel of every
    other engine.

    Example: kernels of 4 ms and 1 ms, and half of the other's kernel to wait for. The first engine takes 1.125 times as long, as each of
    its kernels waits 0.5 ms, and the second 3 times. With shares up to 1 engines do no less together than in turns: 1/1.125 + 1/3 = 1.22.
    """
    together = sum(kernels_s)
    return [1 + kernel_wait * (together - own) / own if own else 1.0 for own in kernels_s]


class Sharing:
    """When the work of each engine of a device will be done, while nothing arrives and nothing is cancelled.

    In time slices k busy engines each take k times as long: whole iterations take turns, launches included. Under CUDA MPS kernels of
    different engines overlap and wait for each other (`waits`); those of an engine are as long as its iterations over its layers, on
    average over a segment. An engine alone is equally fast in both.

    Example (`tests/engines/test_sim_scheduler.py` runs it), in time slices: engine A has 4 s of work from time 0 on. At time 1 engine B
    gets 1 s of work, so that each works at half its rate, and B ends at time 3. A has then done 2 s of work, is alone, and ends at 5.
    """

    def __init__(self, kernel_wait: float | None) -> None:
        """`kernel_wait`: of `waits`; None: engines take turns."""
        self._kernel_wait = kernel_wait
        self.shares: list[Share] = []

    def start(self, share: Share, now: float) -> None:
        """An engine becomes busy at `now`; sets the work at which it begins."""
        work = share.scheduler.work = min((other.work_at(now) for other in self._busy), default=0.0)
        share.pace = Pace(now, work)
        share.set_busy(True, now)
        self._renew(now, share, work)

    def decided(self, share: Share, now: float) -> None:
        """A busy engine has a new forecast from `now` on."""
        if self._kernel_wait is not None:
            self._begin_segment(share, now, share.scheduler.work)

    def stop(self, share: Share, now: float) -> None:
        """An engine becomes idle at `now`, at a boundary between iterations."""
        share.set_busy(False, now)
        self._renew(now, share, share.scheduler.work)

    def first_end(self, now: float) -> tuple[Share, float] | None:
        """The engine whose forecast ends first, and when, if that is by `now`; the paces change up to then."""
        while ahead := [share for share in self.shares if share.scheduler.forecast]:
            first = min(ahead, key=lambda share: share.next_change)
            if (time := first.next_change) > now:
                return None
            if (until := first.pace.until) >= first.scheduler.end:
                return first, time
            self._begin_segment(first, time, until)
        return None

    @property
    def _busy(self) -> list[Share]:
        return [share for share in self.shares if share.busy]

    def _begin_segment(self, share: Share, now: float, work: float) -> None:
        """An engine under CUDA MPS comes to `work` at `now`, where a segment begins."""
        share.scheduler.catch_up(work, share.time)
        pace, segment = share.pace, share.scheduler.forecast[0]
        pace.kernel_s, pace.until = (segment.end - segment.start) / (segment.iterations * segment.cost.layers), segment.end
        self._renew(now, share, work)

    def _renew(self, now: float, at: Share, work: float) -> None:
        """Set all paces from `now` on; the engine `at` has come exactly to `work`, and in time slices all have. A pace that stays is
        not begun anew, which would round."""
        busy = self._busy
        for share, slowdown in zip(busy, self._slowdowns(busy), strict=True):
            pace, scheduler = share.pace, share.scheduler
            if slowdown != pace.slowdown:
                together = share is at or self._kernel_wait is None
                reached = work if together else share.work_at(now) if scheduler.forecast else scheduler.work
                if scheduler.forecast:
                    scheduler.catch_up(reached, share.time)
                pace.work, pace.since, pace.slowdown = reached, max(now, pace.since), slowdown

    def _slowdowns(self, busy: Sequence[Share]) -> list[float]:
        if self._kernel_wait is None:
            return [float(len(busy))] * len(busy)
        return waits([share.pace.kernel_s for share in busy], self._kernel_wait)
