"""Fits the roofline of a device to recorded calls: calls of the engines on it enter, the rates that explain their durations best leave.

The calls arrive at the simulated scheduler when they were sent, with the tokens that they had, and are computed with trial rates.
The orchestration is not simulated, so that waiting in it cannot make up for a wrong rate.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

import numpy as np
from msgspec import structs

from pipeline.analysis.time.work import Array
from pipeline.calibration.recorded import RESOLUTION_S, TimedCall, durations, undisturbed
from pipeline.engines.sim.cache import Node, PrefixCache
from pipeline.engines.sim.device import SimDevice
from pipeline.engines.sim.scheduler import Job, Scheduler
from pipeline.engines.sim.spec import SimDeviceSpec, SimSpec

RATES, MOST = ("flops_per_s", "bytes_per_s", "overhead_s", "sequence_s"), (60, 60, 11, 11)
"""The figures of a device that are fitted, and the greatest logarithms of each."""
EVALUATIONS = 250
"""The maximum number of simulations of all calls in the last search of a fit."""
STARTS, TRIED = 3, 80
"""Searches that begin from the best points of the grid, because one often ends in a local minimum, and the most simulations in each."""
Calls: TypeAlias = "Mapping[str, Sequence[TimedCall]]"
"""The calls of one run, by role."""


class RecordedCache(PrefixCache):
    """A prefix cache with as many tokens of every prompt as were in the real cache (`Job.reusable`); it stores and evicts nothing."""

    def __init__(self) -> None:
        super().__init__(1 << 60)
        self._all = Node((), None)

    def match(self, tokens: Sequence[int], most: int, adapter: str | None = None) -> tuple[Node, int]:
        """`most` are the tokens that were in the real cache."""
        return self._all, most

    def insert(self, node: Node, tokens: Sequence[int]) -> Node:
        return node

    extend = insert

    def unpin(self, node: Node) -> None:
        """Do nothing: nothing is pinned here."""


def fit_device(specs: Mapping[str, SimSpec], traces: Sequence[Calls]) -> SimDeviceSpec:
    """The device that the engines `specs` share with the rates, and their `fit_error`, that explain their calls in one or several runs.

    Searches over the logarithms of `RATES`: shortly from each of the best points of a coarse grid, then from the best that was found.
    """

    def error_at(point: Array) -> float:
        return error_of(_with_rates(specs, point), traces)

    starts = sorted(_grid(specs, traces), key=error_at)[:STARTS]
    tried = min((nelder_mead(error_at, start, 0.7, TRIED) for start in starts), key=error_at)
    best = _with_rates(specs, nelder_mead(error_at, tried, 0.2, EVALUATIONS))
    return structs.replace(next(iter(best.values())).device, fit_error=error_of(best, traces))


def nelder_mead(function: Callable[[Array], float], start: Array, size: float, most: int) -> Array:
    """The point with the least value that Nelder and Mead's method (1965) finds within about `most` evaluations of `function`.

    It begins with a simplex of this `size` at `start`, and ends early where its points and their values hardly differ.
    """
    known: list[tuple[float, Array]] = [(function(point), point) for point in (start, *(start + size * np.eye(len(start))))]
    evaluated = len(known)
    while True:
        known.sort(key=lambda each: each[0])
        (least, best), (worst, last) = known[0], known[-1]
        alike = worst - least < 1e-4 and max(np.abs(point - best).max() for _, point in known) < 0.005
        if evaluated >= most or alike:
            return best
        centre = np.mean([point for _, point in known[:-1]], axis=0)
        found = (function(point := 2 * centre - last), point)
        evaluated += 1
        if found[0] < least or found[0] >= known[-2][0]:
            factor = 2 if found[0] < least else 0.5 if found[0] < worst else -0.5
            further = (function(point := centre + factor * (centre - last)), point)
            evaluated += 1
            found = min(found, further, key=lambda each: each[0])
        if found[0] < worst:
            known[-1] = found
        else:
            known[1:] = [(function(point := (each + best) / 2), point) for _, each in known[1:]]
            evaluated += len(start)


def error_of(specs: Mapping[str, SimSpec], traces: Sequence[Calls]) -> float:
    """Mean of |ln(simulated / recorded)| over the calls that only recorded calls met; see `recorded.undisturbed`."""
    logs = list[Array]()
    for calls in traces:
        counted = undisturbed(calls)
        logs += (np.log(took[counted[role]] / durations(calls[role])[counted[role]]) for role, took in simulate(specs, calls).items())
    return float(np.abs(np.concatenate(logs)).mean())


def simulate(specs: Mapping[str, SimSpec], calls: Calls) -> dict[str, Array]:
    """Seconds that each call takes at its simulated engine, by role, when calls arrive at their recorded times."""
    device = SimDevice(next(iter(specs.values())).device)
    shares = {role: device.join(Scheduler(spec, RecordedCache())) for role, spec in specs.items() if role in calls}
    jobs = {role: [_job(number, call) for number, call in enumerate(calls[role])] for role in shares}
    for arrival, number, role in sorted((job.arrived, number, role) for role, listed in jobs.items() for number, job in enumerate(listed)):
        while (event := device.next_event()) <= arrival:
            device.advance(event)
        device.add(shares[role], jobs[role][number], arrival)
    while (event := device.next_event()) < math.inf:
        device.advance(event)
    return {role: np.array([max(job.finished - job.arrived, RESOLUTION_S) for job in listed]) for role, listed in jobs.items()}


def _job(number: int, call: TimedCall) -> Job:
    key = (max(call.lengths), call.submit_s, "", number)  # about the priority that lanes give to calls: shortest expected service first
    prompt: Any = range(call.input_tokens)
    return Job(key, prompt, call.cached_tokens or 0, call.lengths, (), lambda: None)


def _grid(specs: Mapping[str, SimSpec], traces: Sequence[Calls]) -> list[Array]:
    """Logarithms of figures with which a short call takes about as long as the shortest ones did, with different ones as its bottleneck."""
    timed = [[call for call in listed if call.duration_s >= RESOLUTION_S] for calls in traces for listed in calls.values()]
    quick = [np.quantile(durations(listed) / [max(call.lengths) for call in listed], 0.1) for listed in timed]
    iteration_s = float(np.mean(quick))
    largest = max(spec.parameters for spec in specs.values())
    weights = max(spec.parameters * spec.bytes_per_parameter for spec in specs.values())
    shares = product((0.003, 0.03, 0.3, 3.0), (0.2, 1.0), (0.1, 0.5, 1.0))
    return [np.log(np.array([largest / a, weights / b, iteration_s**2 * c, iteration_s**2 * c / 64]) / iteration_s) for a, b, c in shares]


def _with_rates(specs: Mapping[str, SimSpec], point: Array) -> dict[str, SimSpec]:
    fitted = dict(zip(RATES, np.exp(np.clip(point, -40, MOST)).tolist(), strict=True))
    return {role: structs.replace(spec, device=structs.replace(spec.device, **fitted)) for role, spec in specs.items()}
