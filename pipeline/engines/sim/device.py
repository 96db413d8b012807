"""A simulated accelerator: its engines' events in order of time, and what the specs of its engines say of it. How engines that share it
slow each other is `sharing`'s to say.

Plain synchronous code: the caller says what time it is, and `next_event` says when to come back.

What arrives at the very moment at which an iteration ends may join the next one, in whatever order the tasks of that
moment run: a decision about new work waits until the clock has moved on, if only by the smallest step there is.
"""

import math
from collections.abc import Collection, Mapping

from pipeline.engines.sim.scheduler import Job, Scheduler
from pipeline.engines.sim.sharing import Share, Sharing
from pipeline.engines.sim.spec import KERNEL_WAIT, SimDeviceSpec, SimSpec, SimSpeculativeSpec
from pipeline.errors import GraphError

ROUNDING = 1e-12
"""The maximum relative difference of two readings of one moment on a virtual clock."""


class SimDevice:
    """The simulated accelerator that `spec` describes, with the engines that share it."""

    def __init__(self, spec: SimDeviceSpec) -> None:
        self._sharing = Sharing(KERNEL_WAIT if spec.sharing == "mps" else None)
        self.shares = self._sharing.shares

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

    def advance(self, now: float) -> None:
        """Bring all engines to time `now`, event by event."""
        while True:
            for share in self.shares:
                if share.busy and not share.scheduler.forecast and share.boundary_clock < now:
                    self._decide(share)
            first = self._sharing.first_end(now)
            if first is None:
                return
            self._finish_forecast(*first, now)

    def next_event(self) -> float:
        """The time at which `advance` has something to do, if nothing arrives before; infinite where it never has."""
        earliest = math.inf
        for share in self.shares:
            scheduler = share.scheduler
            if scheduler.forecast:
                time = share.next_change
                # No task waits for a forecast that ends without a finished job: its event comes when the clock has moved past it.
                earliest = min(earliest, time if scheduler.finishes_job() else math.nextafter(time, math.inf))
            elif share.busy:
                earliest = min(earliest, math.nextafter(share.boundary_clock, math.inf))
        return earliest

    def _reconsider(self, share: Share, now: float) -> None:
        """Have the engine decide again at its next boundary between iterations, which may be this moment."""
        scheduler = share.scheduler
        if not share.busy:
            self._sharing.start(share, now)
            share.boundary_clock = share.boundary_time = now
        elif scheduler.forecast and share.boundary_clock == now and not scheduler.forecast[0].chunks:
            scheduler.forecast.clear()  # none of it was computed
        elif scheduler.forecast and not share.is_cut:
            work = share.work_at(now)
            scheduler.catch_up(work, share.time)
            share.is_cut = scheduler.cut(work)
            if not share.is_cut:
                share.boundary_clock = share.boundary_time = now

    def _decide(self, share: Share) -> None:
        """Make the engine's next forecast; one that has nothing to compute becomes idle."""
        share.is_cut = False
        scheduler, now = share.scheduler, share.boundary_time
        scheduler.decide(now)
        if scheduler.forecast:
            self._sharing.decided(share, now)
        else:
            self._sharing.stop(share, now)

    def _finish_forecast(self, share: Share, time: float, now: float) -> None:
        """An engine has reached the boundary at which its forecast ends."""
        scheduler = share.scheduler
        finished = scheduler.finish(share.time)
        for job in finished:
            job.notify()
        # The clock may have been read a rounding error late; what answers a finished job is still of the same moment. What arrives when a
        # real clock is late was not there when the iteration ended.
        at_once = finished and math.isclose(now, time, rel_tol=ROUNDING)
        share.boundary_clock, share.boundary_time = (now if at_once else time), time
        if not scheduler.needs_decision:
            self._decide(share)


def devices_of(specs: Mapping[str, SimSpec]) -> dict[str, SimDeviceSpec]:
    """The devices that `specs` name, by name; raises `GraphError` where engines do not agree about one, or an engine cannot work at all."""
    devices: dict[str, SimDeviceSpec] = {}
    for role, spec in specs.items():
        if (first := devices.setdefault(spec.device.name, spec.device)) != spec.device:
            key = next(key for key in first.__struct_fields__ if getattr(first, key) != getattr(spec.device, key))
            other = next(other for other, each in specs.items() if each.device is first)
            what = f"is {getattr(spec.device, key)}, but {getattr(first, key)} for engine {other!r} on the same device `{first.name}`"
            raise GraphError(f"engine {role!r}: device.{key}", f"{what}; give both the same with --set engines.*.device.{key}=VALUE")
        needs = spec.max_num_seqs * (1 + (spec.speculative.num_speculative_tokens if spec.speculative else 0))
        if spec.max_num_batched_tokens < needs:
            what = f"is {spec.max_num_batched_tokens}; max_num_seqs = {spec.max_num_seqs} sequences need {needs} tokens in an iteration"
            raise GraphError(f"$.{role}.max_num_batched_tokens", what)
    _check_steps({role: spec for role, spec in specs.items() if spec.replay is None})
    return devices


def _check_steps(specs: Mapping[str, SimSpec]) -> None:
    steps = {role: (spec.text.preset, spec.text.steps_mean, spec.text.steps_sigma) for role, spec in specs.items()}
    first = next((role for role, each in steps.items() if each[0] is not None), None)
    for role, each in steps.items():
        if first is not None and each != steps[first]:
            what = f"its thoughts differ in numbers of steps from those of {role!r}, which continues them; give both the same `preset`"
            raise GraphError(f"engine {first!r}: text", what)


def widened(specs: Mapping[str, SimSpec], opened: Collection[str]) -> dict[str, dict[str, int]]:
    """Weights and caches of the engines that are not opened make the caches of the opened ones larger, each in
    proportion to its size. Raises `GraphError` as `devices_of` does."""
    devices_of(specs)
    found: dict[str, dict[str, int]] = {}
    for role in opened:
        spec = specs[role]
        here = {other: each for other, each in specs.items() if each.device.name == spec.device.name}
        freed = sum(sum(_bytes(each)) for other, each in here.items() if other not in opened)
        caches = sum(_bytes(each)[1] for other, each in here.items() if other in opened)
        if freed and _bytes(spec)[1]:
            found[role] = {"kv_cache_tokens": int(spec.kv_cache_tokens * (1 + freed / caches))}
    return found


def _bytes(spec: SimSpec) -> tuple[float, float]:
    """Bytes of the weights and of the keys and values for which there is room, those of a draft inside the engine included."""
    models: list[SimSpec | SimSpeculativeSpec] = [spec, *([spec.speculative] if spec.speculative else [])]
    weights = sum(each.parameters * each.bytes_per_parameter for each in models)
    return weights, spec.kv_cache_tokens * sum(each.kv_bytes_per_token for each in models)
