"""How engines that are busy on one simulated device at the same time slow each other: work enters, times leave.

Synchronous code. Work is measured in the seconds that it takes alone. An engine is known by its scheduler, whose forecast says what it will
compute; of events at one moment those of engines that joined earlier come first.
"""

import math
from collections.abc import Sequence
from functools import partial

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
        self._paces: dict[Scheduler, Pace] = {}
        self._busy: list[Scheduler] = []

    def join(self, scheduler: Scheduler) -> None:
        """Another engine is on the device, and idle."""
        self._paces[scheduler] = Pace()

    def start(self, scheduler: Scheduler, now: float) -> None:
        """An engine becomes busy at `now`; sets the work at which it begins."""
        scheduler.work = min((self.work_at(other, now) for other in self._busy), default=0.0)
        self._paces[scheduler] = Pace(now, scheduler.work)
        self._busy.append(scheduler)
        self._renew(now, scheduler, scheduler.work)

    def decided(self, scheduler: Scheduler, now: float) -> None:
        """A busy engine has a new forecast from `now` on."""
        if self._kernel_wait is not None:
            self._begin_segment(scheduler, now, scheduler.work)

    def stop(self, scheduler: Scheduler, now: float) -> None:
        """An engine becomes idle at `now`, at a boundary between iterations."""
        self._busy.remove(scheduler)
        self._renew(now, scheduler, scheduler.work)

    def first_end(self, now: float) -> tuple[Scheduler, float] | None:
        """The engine whose forecast ends first, and when, if that is by `now`; the paces change up to then."""
        while ahead := [scheduler for scheduler in self._paces if scheduler.forecast]:
            first = min(ahead, key=self.next_change)
            if (time := self.next_change(first)) > now:
                return None
            if (until := self._paces[first].until) >= first.end:
                return first, time
            self._begin_segment(first, time, until)
        return None

    def next_change(self, scheduler: Scheduler) -> float:
        """When something happens to an engine that has a forecast: its end, or an earlier change of its pace."""
        return self.time(scheduler, min(scheduler.end, self._paces[scheduler].until))

    def time(self, scheduler: Scheduler, work: float) -> float:
        """When an engine comes to `work`, at its pace."""
        pace = self._paces[scheduler]
        return pace.since + (work - pace.work) * pace.slowdown

    def work_at(self, scheduler: Scheduler, now: float) -> float:
        """The inverse of `time`; never past the end of a forecast, which rounding could do."""
        pace = self._paces[scheduler]
        return min(pace.work + max(now - pace.since, 0.0) / pace.slowdown, pace.until, scheduler.end)

    def _begin_segment(self, scheduler: Scheduler, now: float, work: float) -> None:
        """An engine under CUDA MPS comes to `work` at `now`, where a segment begins."""
        scheduler.catch_up(work, partial(self.time, scheduler))
        pace, segment = self._paces[scheduler], scheduler.forecast[0]
        pace.kernel_s, pace.until = (segment.end - segment.start) / (segment.iterations * segment.cost.layers), segment.end
        self._renew(now, scheduler, work)

    def _renew(self, now: float, at: Scheduler, work: float) -> None:
        """Set all paces from `now` on; the engine `at` has come exactly to `work`, and in time slices all have. A pace that stays is
        not begun anew, which would round."""
        for scheduler, slowdown in zip(self._busy, self._slowdowns(), strict=True):
            pace = self._paces[scheduler]
            if slowdown != pace.slowdown:
                together = scheduler is at or self._kernel_wait is None
                reached = work if together else self.work_at(scheduler, now) if scheduler.forecast else scheduler.work
                if scheduler.forecast:
                    scheduler.catch_up(reached, partial(self.time, scheduler))
                pace.work, pace.since, pace.slowdown = reached, max(now, pace.since), slowdown

    def _slowdowns(self) -> list[float]:
        if self._kernel_wait is None:
            return [float(len(self._busy))] * len(self._busy)
        return waits([self._paces[scheduler].kernel_s for scheduler in self._busy], self._kernel_wait)
