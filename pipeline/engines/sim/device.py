"""A simulated accelerator: its engines' events in order of time, and how engines that share it slow each other.

Plain synchronous code: the caller says what time it is, and `next_event` says when to come back.

Time slicing: while k engines are busy, work that takes a second alone takes k seconds; k is counted anew at every
moment at which an engine becomes busy or idle. All engines' forecasts are kept in one measure, the device's *work*, which
passes at a rate of 1/k: while k stays the same, neither sharing nor looking at the device changes any forecast.

Example (`tests/engines/test_sim_scheduler.py` runs it): engine A has 4 s of work from time 0 on, so its forecast ends at work
4, at time 4. At time 1, work 1, engine B gets 1 s of work: its forecast ends at work 2. Now k = 2, work passes at half the
speed, and B ends at time 1 + (2 - 1) * 2 = 3. From then on k = 1 again, and A ends at 3 + (4 - 2) * 1 = 5.

What arrives at the very moment at which an iteration ends may join the next one, in whatever order the tasks of that
moment run: a decision about new work waits until the clock has moved on, if only by the smallest step there is.
"""

import math

from pipeline.engines.sim.scheduler import Job, Scheduler
from pipeline.engines.sim.spec import SimDeviceSpec


class Share:
    """One engine on a device: its scheduler, whether it is busy, and when a decision about its next iteration was last due."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.busy = False
        self.boundary_clock = -math.inf
        """The clock's time when the engine's last boundary between iterations was handled; work that arrives before the clock moves on
        still joins there."""
        self.boundary_time = -math.inf
        """The exact time of that boundary; the clock may have been read a rounding error later."""
        self.is_cut = False
        """Whether the forecast was cut after the iteration under way."""
        self._busy_s = 0.0
        self._since = 0.0

    def busy_s(self, now: float) -> float:
        """Seconds in which the engine computed, until `now`."""
        return self._busy_s + (max(now - self._since, 0.0) if self.busy else 0.0)

    def set_busy(self, busy: bool, now: float) -> None:
        """Become busy or idle at `now`."""
        self._busy_s, self._since = self.busy_s(now), now
        self.busy = busy


class SimDevice:
    """The simulated accelerator that `spec` describes, with the engines that share it."""

    def __init__(self, spec: SimDeviceSpec) -> None:
        self.spec = spec
        self.shares: list[Share] = []
        self._busy = 0
        # Work goes on from `_work` at `_since`, at a rate of 1 / `_busy`; all three only change when an engine becomes busy or
        # idle, so that looking at the device never changes how a later moment is rounded.
        self._since = 0.0
        self._work = 0.0

    def join(self, scheduler: Scheduler) -> Share:
        """Add an engine, whose `scheduler` decides what it computes here."""
        share = Share(scheduler)
        self.shares.append(share)
        return share

    def add(self, share: Share, job: Job, now: float) -> bool:
        """Queue `job`, which arrives at `now`; returns whether `next_event` may have changed."""
        self.advance(now)
        changes = share.scheduler.add(job)
        if changes:
            self._reconsider(share, now)
        return changes

    def drop(self, share: Share, job: Job, now: float) -> None:
        """Cancel `job`; its sequences leave the batch after the iteration under way."""
        self.advance(now)
        if math.isnan(job.finished) and not job.cancelled and share.scheduler.drop(job):
            self._reconsider(share, now)

    def interrupt(self, share: Share, job: Job, now: float) -> None:
        """End `job` at `now` with what was computed for it; its sequences leave the batch after the iteration under way."""
        self.advance(now)
        if not math.isnan(job.finished) or job.cancelled:
            return
        work = self._caught_up(share, now)
        if share.scheduler.interrupt(job, work):
            self._reconsider(share, now)
        job.finished = now
        job.notify()

    def sampled(self, share: Share, now: float) -> int:
        """Tokens that the engine had sampled by `now`."""
        return share.scheduler.sampled(self._caught_up(share, now))

    def advance(self, now: float) -> None:
        """Bring all engines to time `now`, event by event."""
        while True:
            for share in self.shares:
                if share.busy and not share.scheduler.forecast and share.boundary_clock < now:
                    self._decide(share)
            first = min(self.shares, key=_forecast_end)
            if not first.scheduler.forecast or (time := self._time(first.scheduler.end)) > now:
                return
            self._finish_forecast(first, time, now)

    def next_event(self) -> float:
        """The time at which `advance` has something to do, if nothing arrives before; infinite where it never has."""
        earliest = math.inf
        for share in self.shares:
            scheduler = share.scheduler
            if scheduler.forecast:
                time = self._time(scheduler.end)
                # No task waits for a forecast that ends without a finished job: its event comes when the clock has moved past it.
                earliest = min(earliest, time if scheduler.finishes_job() else math.nextafter(time, math.inf))
            elif share.busy:
                earliest = min(earliest, math.nextafter(share.boundary_clock, math.inf))
        return earliest

    def _caught_up(self, share: Share, now: float) -> float:
        """The device's work at `now`, up to which the engine's boundary is moved over whole segments."""
        work = self._work_at(now)
        share.scheduler.catch_up(work, self._time)
        return work

    def _reconsider(self, share: Share, now: float) -> None:
        """Have the engine decide again at its next boundary between iterations, which may be this moment."""
        scheduler = share.scheduler
        if not share.busy:
            self._set_busy(share, True, now)
            scheduler.work = self._work
            share.boundary_clock = share.boundary_time = now
        elif scheduler.forecast and share.boundary_clock == now and scheduler.decoding_only:
            scheduler.discard_forecast()
        elif scheduler.forecast and not share.is_cut:
            work = self._caught_up(share, now)
            share.is_cut = scheduler.cut(work)
            if not share.is_cut:
                share.boundary_clock = share.boundary_time = now

    def _decide(self, share: Share) -> None:
        """Make the engine's next forecast; one that has nothing to compute becomes idle."""
        share.is_cut = False
        share.scheduler.decide(share.boundary_time)
        if not share.scheduler.forecast:
            self._set_busy(share, False, share.boundary_time)

    def _finish_forecast(self, share: Share, time: float, now: float) -> None:
        """An engine has reached the boundary at which its forecast ends."""
        scheduler = share.scheduler
        finished = scheduler.finish(self._time)
        for job in finished:
            job.notify()
        # The clock may have been read a rounding error late; what answers a finished job is still of the same moment.
        share.boundary_clock, share.boundary_time = (now if finished else time), time
        if not scheduler.needs_decision:
            self._decide(share)

    def _time(self, work: float) -> float:
        """When the device's work comes to `work`, while as many engines are busy as now."""
        return self._since + (work - self._work) * self._busy

    def _work_at(self, now: float) -> float:
        """The inverse of `_time`; never past the end of a forecast, which rounding could do."""
        if not self._busy:
            return self._work
        work = self._work + (now - self._since) / self._busy
        return min([work, *map(_forecast_end, self.shares)])

    def _set_busy(self, share: Share, busy: bool, now: float) -> None:
        """Change the number of busy engines at `now`."""
        work = share.scheduler.work if share.busy else self._work_at(now)
        for other in self.shares:
            if other.scheduler.forecast:
                other.scheduler.catch_up(work, self._time)
        self._work, self._since = (work if self._busy else 0.0), now
        share.set_busy(busy, now)
        self._busy = sum(other.busy for other in self.shares)


def _forecast_end(share: Share) -> float:
    return share.scheduler.end
