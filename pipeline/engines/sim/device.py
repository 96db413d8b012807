"""A simulated accelerator: its engines' events in order of time, and how engines that share it slow each other.

Time slicing: while k engines are busy, work that takes a second alone takes k seconds; k is counted anew at every
moment at which an engine becomes busy or idle. Plain synchronous code: the caller says what time it is, and `wake`
says when to come back.

What arrives at the very moment at which an iteration ends may join the next one, in whatever order the tasks of that
moment run: a decision about new work waits until the clock has moved on, if only by the smallest step there is.
"""

import math

from pipeline.engines.sim.scheduler import Scheduler
from pipeline.engines.sim.segment import Job
from pipeline.engines.sim.spec import SimDeviceSpec


class Share:
    """One engine's part of a device."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.busy = False
        self.boundary = -math.inf
        """Clock at which its last boundary was handled; until the clock moves on, arrivals still join there."""
        self.reached = -math.inf
        """Time of that boundary."""
        self.cut = False
        """The course was shortened to the iteration under way."""
        self._busy_s = 0.0
        self._since = 0.0

    def busy_s(self, now: float) -> float:
        """Seconds in which the engine computed, until `now`."""
        return self._busy_s + (max(now - self._since, 0.0) if self.busy else 0.0)

    def turn(self, busy: bool, now: float) -> None:
        """Become busy or idle at `now`."""
        self._busy_s, self._since = self.busy_s(now), now
        self.busy = busy


class SimDevice:
    """The accelerator that `spec` describes."""

    def __init__(self, spec: SimDeviceSpec) -> None:
        self.spec = spec
        self.shares: list[Share] = []
        self._busy = 0
        # Work runs on from `_work` at `_since`, at a rate of 1 / `_busy`; both only change when `_busy` does,
        # so that looking at the device never changes how a later moment is rounded.
        self._since = 0.0
        self._work = 0.0

    def join(self, scheduler: Scheduler) -> Share:
        share = Share(scheduler)
        self.shares.append(share)
        return share

    def add(self, share: Share, job: Job, now: float) -> bool:
        """A job arrives; returns whether the next event may be another one for it."""
        self.advance(now)
        changes = share.scheduler.add(job)
        if changes:
            self._reconsider(share, now)
        return changes

    def drop(self, share: Share, job: Job, now: float) -> None:
        """A job is cancelled; its sequences leave with the iteration under way."""
        self.advance(now)
        if math.isnan(job.finished) and not job.cancelled and share.scheduler.drop(job):
            self._reconsider(share, now)

    def advance(self, now: float) -> None:
        """Bring all engines to time `now`."""
        while True:
            for share in self.shares:
                if share.busy and not share.scheduler.course and share.boundary < now:
                    self._decide(share)
            first = min(self.shares, key=_course_end)
            if not first.scheduler.course or (time := self._time(first.scheduler.end)) > now:
                return
            self._finish_course(first, time, now)

    def wake(self) -> float:
        """When `advance` has something to do, if nothing arrives before."""
        earliest = math.inf
        for share in self.shares:
            scheduler = share.scheduler
            if scheduler.course:
                time = self._time(scheduler.end)
                # What ends without a finished job waits for nobody: come when the moment is over.
                earliest = min(earliest, time if scheduler.delivers() else math.nextafter(time, math.inf))
            elif share.busy:
                earliest = min(earliest, math.nextafter(share.boundary, math.inf))
        return earliest

    def _reconsider(self, share: Share, now: float) -> None:
        """Decide anew at the next boundary, which may be this moment."""
        scheduler = share.scheduler
        if not share.busy:
            self._set_busy(share, True, now)
            scheduler.work = self._work
            share.boundary = share.reached = now
        elif scheduler.course and share.boundary == now and scheduler.decoding_only:
            scheduler.reopen()
        elif scheduler.course and not share.cut:
            work = self._work_at(now)
            scheduler.catch_up(work, self._time)
            share.cut = scheduler.interrupt(work)
            if not share.cut:
                share.boundary = share.reached = now

    def _decide(self, share: Share) -> None:
        share.cut = False
        share.scheduler.decide(share.reached)
        if not share.scheduler.course:
            self._set_busy(share, False, share.reached)

    def _finish_course(self, share: Share, time: float, now: float) -> None:
        """An engine has reached the boundary at which its course ends."""
        scheduler = share.scheduler
        finished = scheduler.finish(self._time)
        for job in finished:
            job.notify()
        # The clock may have been read a rounding error late; what answers a delivery is still of the same moment.
        share.boundary, share.reached = (now if finished else time), time
        if not scheduler.undecided:
            self._decide(share)

    def _time(self, work: float) -> float:
        return self._since + (work - self._work) * self._busy

    def _work_at(self, now: float) -> float:
        if not self._busy:
            return self._work
        work = self._work + (now - self._since) / self._busy
        return min([work, *map(_course_end, self.shares)])

    def _set_busy(self, share: Share, busy: bool, now: float) -> None:
        """Change the number of busy engines at `now`."""
        work = share.scheduler.work if share.busy else self._work_at(now)
        for other in self.shares:
            if other.scheduler.course:
                other.scheduler.catch_up(work, self._time)
        self._work, self._since = (work if self._busy else 0.0), now
        share.turn(busy, now)
        self._busy = sum(other.busy for other in self.shares)


def _course_end(share: Share) -> float:
    return share.scheduler.end
