"""How engines that are busy on one simulated device at the same time slow each other: work enters, times leave.

Plain synchronous code. Work is measured in the seconds that it takes alone. `TimeSlices` is two processes on one GPU that take turns, whole
iterations and their launches included. In `Concurrent` launches overlap with everything: its kernels run side by side and wait for each
other, as under CUDA MPS, or exclude each other.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct

from pipeline.engines.sim.roofline import Cost
from pipeline.engines.sim.scheduler import Scheduler, Segment
from pipeline.engines.sim.spec import SimDeviceSpec

_GROWTH = 1 / 16
"""By how much of itself the memory traffic of an iteration may grow until an engine's use of a device is worked out anew."""
_EXACT = 1e-12
"""By how much of the device the use of all engines together may be above it, for rounding."""


class Sharing(Protocol):
    """When the work of each engine of a device will be done, while nothing arrives and nothing is cancelled.

    An engine is known by its scheduler, whose forecast says what it will compute.
    """

    def join(self, scheduler: Scheduler) -> None:
        """Another engine, idle as yet, is on the device; of events at one moment those of earlier engines come first."""

    def start(self, scheduler: Scheduler, now: float) -> None:
        """An engine becomes busy at `now`; sets the work at which it begins."""

    def decided(self, scheduler: Scheduler, now: float) -> None:
        """A busy engine has a new forecast from `now` on."""

    def stop(self, scheduler: Scheduler, now: float) -> None:
        """An engine becomes idle at `now`, at a boundary between iterations."""

    def first_end(self, now: float) -> tuple[Scheduler, float] | None:
        """The engine whose forecast ends first, and when, if that is by `now`."""

    def next_change(self, scheduler: Scheduler) -> float:
        """When something happens to an engine that has a forecast: its end, or an earlier change of how fast it is reached."""

    def time(self, scheduler: Scheduler, work: float) -> float:
        """When an engine comes to `work`, while all stay as fast as they are."""

    def work_at(self, scheduler: Scheduler, now: float) -> float:
        """The inverse of `time`; never past the end of a forecast, which rounding could do."""


def sharing_of(spec: SimDeviceSpec) -> Sharing:
    """The rule by which the engines of the device `spec` share it."""
    if spec.sharing == "time_slices":
        return TimeSlices(spec.sharing_efficiency)
    return Concurrent(spec.sharing_efficiency, spec.waits_for, exclusive=spec.sharing == "kernels")


class TimeSlices:
    """While k engines are busy, work that takes a second alone takes k seconds, divided by `efficiency` from two on; whole iterations
    count, launches included.

    k is counted anew at every moment at which an engine becomes busy or idle. All engines' forecasts are kept in one measure, the
    device's *work*, which passes at a rate of 1/k: while k stays the same, neither sharing nor looking at the device changes any forecast.

    Example (`tests/engines/test_sim_scheduler.py` runs it): engine A has 4 s of work from time 0 on, so its forecast ends at work
    4, at time 4. At time 1, work 1, engine B gets 1 s of work: its forecast ends at work 2. Now k = 2, work passes at half the
    speed, and B ends at time 1 + (2 - 1) * 2 = 3. From then on k = 1 again, and A ends at 3 + (4 - 2) * 1 = 5.
    """

    def __init__(self, efficiency: float) -> None:
        self._efficiency = efficiency
        self._schedulers: list[Scheduler] = []
        self._busy: set[Scheduler] = set()
        # Work goes on from `_work` at `_since`, at a rate of 1 / `_slowdown`; all three only change when an engine becomes busy or
        # idle, so that looking at the device never changes how a later moment is rounded.
        self._since = 0.0
        self._work = 0.0
        self._slowdown = 0.0

    def join(self, scheduler: Scheduler) -> None:
        self._schedulers.append(scheduler)

    def start(self, scheduler: Scheduler, now: float) -> None:
        self._change(self.work_at(scheduler, now), now, self._busy | {scheduler})
        scheduler.work = self._work

    def decided(self, scheduler: Scheduler, now: float) -> None:
        """Another batch is as fast as the one before."""

    def stop(self, scheduler: Scheduler, now: float) -> None:
        self._change(scheduler.work, now, self._busy - {scheduler})

    def first_end(self, now: float) -> tuple[Scheduler, float] | None:
        first = min(self._schedulers, key=_forecast_end)
        if not first.forecast or (time := self.time(first, first.end)) > now:
            return None
        return first, time

    def next_change(self, scheduler: Scheduler) -> float:
        return self.time(scheduler, scheduler.end)

    def time(self, scheduler: Scheduler, work: float) -> float:
        return self._since + (work - self._work) * self._slowdown

    def work_at(self, scheduler: Scheduler, now: float) -> float:
        if not self._busy:
            return self._work
        work = self._work + (now - self._since) / self._slowdown
        return min([work, *map(_forecast_end, self._schedulers)])

    def _change(self, work: float, now: float, busy: set[Scheduler]) -> None:
        """Let the engines `busy` be the busy ones from `work` on, which is reached at `now`."""
        for other in self._schedulers:
            if other.forecast:
                other.catch_up(work, partial(self.time, other))
        self._work, self._since = (work if self._busy else 0.0), now
        self._busy = busy
        self._slowdown = float(len(busy)) if len(busy) < 2 else len(busy) / self._efficiency


class Use(Struct, frozen=True):
    """What an engine takes of a device that it has to itself."""

    bandwidth: float
    """Memory traffic over what the device could move meanwhile, at most 1."""
    multipliers: float
    """Arithmetic over what the device could compute meanwhile, at most 1."""
    overhead: float
    """Share of the time that is overhead, in which it takes nothing of the device."""
    kernel_s: float = 0.0
    """Mean seconds of a kernel: an iteration, its overhead included, over the layers of the model."""

    def exclusive(self) -> "Use":
        """The use of an engine whose kernels keep all others off the device: all of it, but in its overhead."""
        busy = max(1 - self.overhead, self.bandwidth, self.multipliers)  # the greatest of some iterations may be above their mean
        return Use(busy, busy, self.overhead, self.kernel_s)

    def slowdown(self, stretch: float) -> float:
        """How many seconds a second of its work takes where all of it but the overhead takes `stretch` times as long."""
        return 1 + (stretch - 1) * (1 - self.overhead)

    def stretch_for(self, slowdown: float) -> float:
        """The inverse of `slowdown`; infinite where all is overhead."""
        return 1 + (slowdown - 1) / (1 - self.overhead) if self.overhead < 1 else math.inf


def slowdowns(uses: Sequence[Use], efficiency: float = 1.0, kernel_wait: float = 0.0) -> list[float]:
    """How many seconds a second of each engine's work takes while all of them are busy, with the arguments of `Concurrent`.

    An engine is as slow as its kernels wait (`waits`), or else as the bandwidth and the multipliers that the others leave make it
    (`stretch`), over `efficiency`. Example: the kernels of two engines without overhead are 4 ms and 1 ms long, and wait for half of one
    of the other. The first takes 1.125 times as long, as each of its kernels waits 0.5 ms, and the second 3 times. Together they do
    1/1.125 + 1/3 = 1.22 seconds of work a second, and if each took all of the bandwidth alone, which leaves 1, the first would have to
    take 1.5 times as long.
    """
    waiting = waits(uses, kernel_wait)
    stretched = stretch(uses, waiting) / efficiency
    return [max(use.slowdown(stretched), least) for use, least in zip(uses, waiting, strict=True)]


def waits(uses: Sequence[Use], kernel_wait: float) -> list[float]:
    """How many seconds a second of each engine's work takes where a kernel waits for the share `kernel_wait` of a kernel of every other
    engine. With shares up to 1 engines do no less together than in turns."""
    together = sum(use.kernel_s for use in uses)
    return [1 + kernel_wait * (together - use.kernel_s) / use.kernel_s if use.kernel_s else 1.0 for use in uses]


def stretch(uses: Sequence[Use], waiting: Sequence[float] | None = None) -> float:
    """How many times as long everything but overhead takes for engines that use a device together: the least number, at least 1, for
    which they take no more than its bandwidth and its multipliers. One that is slower anyway, `waiting`, takes less of them.

    So each gets of both in proportion to what it would take alone, and overhead overlaps with the others' work. Example: two engines
    without overhead that each take all of the bandwidth are stretched 2 times; with an overhead of half their time, each takes half
    of the bandwidth alone, and nothing is stretched.
    """
    least = [1.0] * len(uses) if waiting is None else waiting
    return max(_fitting([use.bandwidth for use in uses], uses, least), _fitting([use.multipliers for use in uses], uses, least))


def _fitting(shares: Sequence[float], uses: Sequence[Use], waiting: Sequence[float]) -> float:
    """The least stretch, at least 1, for which the `shares` of one resource that engines take alone are no more than there is.

    Up to some stretch an engine waits longer than it is stretched. Between these stretches what is taken falls ever more slowly, so that
    Newton's steps approach the least one from below; no step goes past the next of them.
    """
    turns = [use.stretch_for(slowdown) for use, slowdown in zip(uses, waiting, strict=True)]
    found = 1.0
    while True:
        taken = slope = 0.0
        for share, use, slowdown, turn in zip(shares, uses, waiting, turns, strict=True):
            if found < turn:
                taken += share / slowdown
            else:
                taken += share / use.slowdown(found)
                slope += share * (1 - use.overhead) / use.slowdown(found) ** 2
        ahead = [turn for turn in turns if found < turn < math.inf]
        if taken <= 1 + _EXACT or not (slope or ahead):
            return found
        found = min([found + (taken - 1) / slope, *ahead] if slope else ahead)


class Pace(Struct):
    """How fast one engine works: it was at `work` at the time `since`, and a second of its work takes `slowdown` seconds until it
    comes to the work `until`."""

    work: float
    since: float
    slowdown: float = 1.0
    until: float = math.inf


class Concurrent:
    """Engines that are busy at the same time share bandwidth and multipliers in proportion to what each takes alone (`stretch`); overhead
    is not device time and overlaps. From two engines on, everything but overhead takes 1/`efficiency` times longer still. A kernel waits
    for the share `kernel_wait` of a kernel of each other engine (`waits`); of the two the slower counts (`slowdowns`).

    `exclusive`: a kernel has all of the device while it runs, however little of it it uses; only overhead overlaps. Example: two engines
    that spend half of their time on overhead do not slow each other, and two without any take twice as long.

    What an engine takes changes with its batch, and slowly as contexts grow: it is worked out anew for each segment, and within a
    segment whenever the traffic has grown by a sixteenth; the greatest use of such a piece counts for all of it, so that the engines
    never take more than the device has. An engine alone is as fast as it would be under `TimeSlices`.
    """

    def __init__(self, efficiency: float, kernel_wait: float = 0.0, exclusive: bool = False) -> None:
        self._efficiency, self._kernel_wait, self._exclusive = efficiency, kernel_wait, exclusive
        self._paces: dict[Scheduler, Pace] = {}
        """Of all engines; that of an idle one is without meaning."""

    def join(self, scheduler: Scheduler) -> None:
        self._paces[scheduler] = Pace(0.0, 0.0)

    def start(self, scheduler: Scheduler, now: float) -> None:
        scheduler.work = 0.0
        self._paces[scheduler] = Pace(0.0, now)

    def decided(self, scheduler: Scheduler, now: float) -> None:
        self._renew(now, scheduler, scheduler.work)

    def stop(self, scheduler: Scheduler, now: float) -> None:
        self._renew(now)

    def first_end(self, now: float) -> tuple[Scheduler, float] | None:
        """Until then every change of the engines' paces by `now` is carried out."""
        while ahead := [scheduler for scheduler in self._paces if scheduler.forecast]:
            first = min(ahead, key=self.next_change)
            if (time := self.next_change(first)) > now:
                return None
            if self._paces[first].until >= first.end:
                return first, time
            self._renew(time, first, self._paces[first].until)
        return None

    def next_change(self, scheduler: Scheduler) -> float:
        return self.time(scheduler, min(scheduler.end, self._paces[scheduler].until))

    def time(self, scheduler: Scheduler, work: float) -> float:
        pace = self._paces[scheduler]
        return pace.since + (work - pace.work) * pace.slowdown

    def work_at(self, scheduler: Scheduler, now: float) -> float:
        pace = self._paces[scheduler]
        return min(pace.work + max(now - pace.since, 0.0) / pace.slowdown, pace.until, scheduler.end)

    def _renew(self, now: float, at: Scheduler | None = None, work: float = 0.0) -> None:
        """Work out all paces from `now` on; the engine `at` has come exactly to `work`."""
        ahead = {other: work if other is at else self.work_at(other, now) for other in self._paces if other.forecast}
        for other, reached in ahead.items():
            other.catch_up(reached, partial(self.time, other))
        alone = len(ahead) < 2
        pieces = {other: (Use(0, 0, 0), math.inf) if alone else _piece(other.forecast[0], reached) for other, reached in ahead.items()}
        uses = [use.exclusive() if self._exclusive else use for use, _ in pieces.values()]
        slower = [1.0] * len(uses) if alone else slowdowns(uses, self._efficiency, self._kernel_wait)
        for (other, (_, until)), slowdown in zip(pieces.items(), slower, strict=True):
            pace = self._paces[other]
            pace.until = until
            if slowdown != pace.slowdown:  # else a new beginning would only round
                pace.work, pace.since, pace.slowdown = ahead[other], max(now, pace.since), slowdown


def _piece(segment: Segment, work: float) -> tuple[Use, float]:
    """What an engine takes at `work` in `segment`, and the work until which that counts."""
    begun = 0
    for end in _pieces(segment):
        until = segment.end if end == segment.iterations else segment.start + segment.cost.duration(end)
        if work < until:
            return use_of(segment.cost, begun, end), until
        begun = end
    return use_of(segment.cost, 0, segment.iterations), segment.end


def _pieces(segment: Segment) -> Iterator[int]:
    """The iterations of `segment` after which a piece of it ends, the last one included."""
    end, cost = 0, segment.cost
    while end < segment.iterations:
        traffic = cost.memory + end * cost.growth
        end += max(1, int(_GROWTH * traffic / cost.growth)) if cost.growth else segment.iterations
        yield min(end, segment.iterations)


def use_of(cost: Cost, begun: int, end: int) -> Use:
    """The greatest use of a device in the iterations of `cost` from number `begun` up to `end`, their overhead, and their mean kernel."""
    seconds = cost.duration(end) - cost.duration(begun)
    if not seconds:
        return Use(0.0, 0.0, 0.0)
    last = cost.memory + (end - 1) * cost.growth
    # Traffic grows and arithmetic does not: the last iteration takes most of the bandwidth, the first one most of the multipliers.
    return Use(
        bandwidth=last / cost.iteration_s(end - 1) if last else 0.0,
        multipliers=cost.compute / cost.iteration_s(begun) if cost.compute else 0.0,
        overhead=min(1.0, (end - begun) * cost.overhead / seconds),
        kernel_s=seconds / ((end - begun) * cost.layers),
    )


def _forecast_end(scheduler: Scheduler) -> float:
    return scheduler.end
