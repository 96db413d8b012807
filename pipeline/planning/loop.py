"""Simulates chains on simulated devices as a closed loop: calls and a batch size enter, the time that they take and what was busy leave.

Each of `batch_size` chains asks its next calls when its last ones have been answered; the next chain begins when one ends and the caches
have room. Only schedulers and devices are simulated, so that a call costs a tenth of what it does in a simulated run.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from msgspec import Struct

from pipeline.calibration.fit import RecordedCache
from pipeline.engine import Request
from pipeline.engines.sim.device import Share, SimDevice
from pipeline.engines.sim.scheduler import Job, Scheduler
from pipeline.engines.sim.spec import SimSpec
from pipeline.engines.sim.speculation import CandidateIterations, iterations_of
from pipeline.planning.chains import Asked, PilotChain


class Loop(Struct, frozen=True, kw_only=True):
    """How the chains went."""

    seconds: float
    """From the first call to the last."""
    first_end: float
    """When the first chain ended."""
    last_start: float
    """When the last one began."""
    busy: Mapping[str, float]
    """Share of the time in which an engine computed, by role."""
    waited: bool
    """Whether a chain had to wait for room in a cache."""


class _Live:
    """A chain that is simulated."""

    __slots__ = ("chain", "level", "open", "place")

    def __init__(self, chain: PilotChain, place: int) -> None:
        self.chain, self.place, self.level, self.open = chain, place, 0, 0


class ClosedLoop:
    """One simulation; `run` does it."""

    def __init__(self, specs: Mapping[str, SimSpec], chains: Sequence[PilotChain], batch_size: int) -> None:
        devices = {spec.device.name: SimDevice(spec.device) for spec in specs.values()}
        self._devices, self._specs = list(devices.values()), specs
        self._shares = {role: (devices[spec.device.name], _share(devices[spec.device.name], spec)) for role, spec in specs.items()}
        self._coming: list[tuple[float, int, _Live]] = []
        self._left, self._batch = deque(enumerate(chains)), batch_size
        self._contexts = dict.fromkeys(specs, 0)
        self._in_flight, self._queues = dict.fromkeys(specs, 0), {role: list[tuple[int, int, Any]]() for role in specs}
        self._live = self._number = 0
        self._now = self._last_start = 0.0
        self._first_end = math.nan
        self._waited = False
        self._done: list[Callable[[], None]] = []

    def run(self) -> Loop:
        self._begin()
        while True:
            arrival = self._coming[0][0] if self._coming else math.inf
            event = min((device.next_event() for device in self._devices), default=math.inf)
            if arrival == event == math.inf:
                break
            self._now = min(arrival, event)
            if arrival <= event:
                _, _, live = heappop(self._coming)
                self._ask(live)
            else:
                for device in self._devices:
                    device.advance(event)
            while self._done:
                self._done.pop()()
        busy = {role: share.busy_s(self._now) / self._now if self._now else 0.0 for role, (_, share) in self._shares.items()}
        return Loop(seconds=self._now, first_end=self._first_end, last_start=self._last_start, busy=busy, waited=self._waited)

    def _begin(self) -> None:
        """Let chains begin while there are places and room."""
        while self._left and self._live < self._batch:
            place, chain = self._left[0]
            peaks = {role: chain.peak(role) for role in self._specs}
            if self._live and any(self._contexts[role] + peak > self._specs[role].kv_cache_tokens for role, peak in peaks.items()):
                self._waited = True
                return
            self._left.popleft()
            for role, peak in peaks.items():
                self._contexts[role] += peak
            self._live += 1
            self._last_start = self._now
            self._later(_Live(chain, place))

    def _later(self, live: _Live) -> None:
        """The next level of a chain comes after its gap."""
        self._number += 1
        heappush(self._coming, (self._now + live.chain.gaps[live.level], self._number, live))

    def _ask(self, live: _Live) -> None:
        calls = live.chain.levels[live.level]
        live.open = len(calls)
        for call in calls:
            self._number += 1
            heappush(self._queues[call.role], (max(call.lengths), self._number, (live, call)))
        for role in dict.fromkeys(call.role for call in calls):
            self._send(role)

    def _send(self, role: str) -> None:
        """Send calls of a role while its engine takes some, those that are expected to be short first, as lanes do."""
        queue, most = self._queues[role], self._specs[role].max_in_flight
        device, share = self._shares[role]
        while queue and self._in_flight[role] < most:
            length, number, (live, call) = heappop(queue)
            self._in_flight[role] += 1
            device.add(share, self._job(role, length, number, live, call), self._now)

    def _job(self, role: str, length: int, number: int, live: _Live, call: Asked) -> Job:
        prompt: Any = range(call.prompt)

        def ended() -> None:
            self._done.append(lambda: self._answered(role, live))

        inner = self._specs[role].speculative
        progress: tuple[CandidateIterations, ...] = ()
        if inner is not None:
            request = Request(request_id=f"{live.place}/{live.level}/{number}", prompt_ids=(), max_tokens=1)
            progress = tuple(iterations_of(inner, request, each, tokens) for each, tokens in enumerate(call.lengths))
        return Job((length, self._now, "", number), prompt, call.cached, call.lengths, (), ended, progress)

    def _answered(self, role: str, live: _Live) -> None:
        self._in_flight[role] -= 1
        self._send(role)
        live.open -= 1
        if live.open:
            return
        live.level += 1
        if live.level < len(live.chain.levels):
            self._later(live)
            return
        self._live -= 1
        if math.isnan(self._first_end):
            self._first_end = self._now
        for each in self._specs:
            self._contexts[each] -= live.chain.peak(each)
        self._begin()


def _share(device: SimDevice, spec: SimSpec) -> Share:
    scheduler = Scheduler(spec)
    scheduler.cache = RecordedCache()
    return device.join(scheduler)


def bound_s(specs: Mapping[str, SimSpec], chains: Sequence[PilotChain], batch_size: int, times: float = 1.0) -> float:
    """Seconds that the chains take at least, in closed form: the arithmetic of all tokens, the weights that are read once for each token of
    the longest candidate and shared by at most `batch_size` chains, and the longest chain alone. Of a run with the work of `times` these
    chains: its longest chain is taken to be as theirs."""
    work = dict.fromkeys(specs, 0.0)
    longest = 0.0
    for role, spec in specs.items():
        device, draft = spec.device, spec.speculative
        faster = 1 + (draft.num_speculative_tokens if draft else 0)
        iteration_s = spec.parameters * spec.bytes_per_parameter / device.bytes_per_s + device.overhead_s
        serial = [sum(max((max(c.lengths) for c in level if c.role == role), default=0) for level in each.levels) for each in chains]
        tokens = sum(prompt - cached + sampled for prompt, cached, sampled in (each.tokens(role) for each in chains))
        work[role] = times * max(tokens * 2 * spec.parameters / device.flops_per_s, sum(serial) / faster * iteration_s / batch_size)
        longest = max(longest, max(serial, default=0) / faster * iteration_s)
    shared: dict[str, list[float]] = {}
    for role, spec in specs.items():
        shared.setdefault(spec.device.name, []).append(work[role])
    together = [sum(each) if specs_of(specs, name).device.sharing == "time_slices" else max(each) for name, each in shared.items()]
    return max(longest, *together)


def specs_of(specs: Mapping[str, SimSpec], device: str) -> SimSpec:
    """One of the engines on a device."""
    return next(spec for spec in specs.values() if spec.device.name == device)
