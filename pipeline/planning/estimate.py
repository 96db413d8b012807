"""How long a run will take and what it will sample: a pilot's chains, simulated engines and a batch size enter, figures with an interval
leave. Pure."""

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, structs

from pipeline.engines.sim.spec import SimSpec
from pipeline.planning.chains import PilotChain, mean_tokens
from pipeline.planning.loop import ClosedLoop, bound_s

ROUNDS = 3
"""As many chains as this many times the batch size are simulated; a longer run goes on at their pace."""
FEWEST = 48
"""Chains that are simulated at least."""
RESAMPLES = 400
CACHE = "KV cache"
"""`ExpectedRun.limited_by` where chains wait for room."""
BUSY = 0.9
"""From this share of the time on an engine counts as busy all the time."""


class ExpectedRun(Struct, frozen=True, kw_only=True):
    """A run as it is expected, at 95 % intervals of the problems; the error of the simulation comes on top."""

    seconds: float
    low_s: float
    high_s: float
    fixed_s: float
    """Seconds beside those of each chain: what filling and emptying the batch take."""
    chain_s: float
    """Seconds for each chain more."""
    limited_by: str


class Pilot(Struct, frozen=True, kw_only=True):
    """What was recorded of one system."""

    chains: tuple[PilotChain, ...]
    walls: Mapping[int, tuple[float, tuple[PilotChain, ...]]] = {}
    """Of each of its runs, by the batch size: the seconds that it took, and its chains, which may differ from those of another run."""

    def corrections(self, specs: Mapping[str, SimSpec]) -> dict[int, float]:
        """Recorded over simulated seconds of its own runs, by their batch size."""
        found = {}
        for batch_size, (wall_s, chains) in self.walls.items():
            simulated = ClosedLoop(specs, chains, batch_size).run().seconds
            found[batch_size] = wall_s / simulated if simulated else 1.0
        return found


def correction(known: Mapping[int, float], batch_size: int) -> float:
    """The correction at a batch size, between known ones along the logarithm of both, beyond them that of the nearest."""
    if not known:
        return 1.0
    sizes = sorted(known)
    return float(np.exp(np.interp(math.log(batch_size), np.log(sizes), [math.log(known[size]) for size in sizes])))


def drawn(chains: Sequence[PilotChain], count: int, seed: int = 0) -> list[PilotChain]:
    """`count` of the chains at random, each about equally often."""
    source, found = random.Random(seed), list[PilotChain]()
    while len(found) < count:
        found += source.sample(list(chains), len(chains))
    return found[:count]


def estimate(pilot: Pilot, specs: Mapping[str, SimSpec], batch_size: int, count: int, corrected: float) -> ExpectedRun:
    """A run of `count` chains; `corrected` is what simulated seconds are multiplied by."""
    chains = drawn(pilot.chains, min(count, max(FEWEST, ROUNDS * batch_size)))
    loop = ClosedLoop(specs, chains, batch_size).run()
    between = len(chains) - batch_size
    pace_s = (loop.last_start - loop.first_end) / (between - 1) if between > FEWEST // 4 else loop.seconds / len(chains)
    seconds = corrected * (loop.seconds + (count - len(chains)) * pace_s)
    low, high = interval(pilot.chains, specs, count)
    chain_s = corrected * pace_s
    return ExpectedRun(
        seconds=seconds,
        low_s=seconds * low,
        high_s=seconds * high,
        fixed_s=max(0.0, seconds - count * chain_s),
        chain_s=chain_s,
        limited_by=_limit(loop.busy, batch_size, count, waited=loop.waited),
    )


def split_by_use(chains: Sequence[PilotChain], specs: Mapping[str, SimSpec]) -> dict[str, SimSpec]:
    """`specs` with the memory of the caches of each device, as much as it is together, divided so that they are full with equally many
    chains; those of a device stay as they are where one would not hold the longest context."""
    found = dict(specs)
    for device in dict.fromkeys(spec.device.name for spec in specs.values()):
        here = {role: spec for role, spec in specs.items() if spec.device.name == device}
        peaks = {role: [chain.peak(role) for chain in chains] for role in here}
        whole = sum(spec.kv_cache_tokens * spec.kv_bytes_per_token for spec in here.values())
        of_a_chain = sum(sum(peaks[role]) / len(chains) * spec.kv_bytes_per_token for role, spec in here.items())
        caches = {role: int(whole / of_a_chain * sum(peaks[role]) / len(chains)) if of_a_chain else 0 for role in here}
        if all(caches[role] >= max(1, spec.max_model_len, *peaks[role]) for role, spec in here.items()):
            found |= {role: structs.replace(spec, kv_cache_tokens=caches[role]) for role, spec in here.items()}
    return found


def bound(pilot: Pilot, specs: Mapping[str, SimSpec], batch_size: int, count: int, corrected: float) -> float:
    """Seconds that such a run takes at least."""
    return corrected * bound_s(specs, pilot.chains, batch_size, count / len(pilot.chains))


def interval(chains: Sequence[PilotChain], specs: Mapping[str, SimSpec], count: int) -> tuple[float, float]:
    """95 % interval of the work of `count` new chains over that of the mean of the pilot's, by a bootstrap over its problems."""
    work: dict[str, list[float]] = {}
    for chain in chains:
        each = sum(spec.parameters * spec.bytes_per_parameter * chain.tokens(role)[2] for role, spec in specs.items())
        work.setdefault(chain.problem, []).append(each)
    means = np.array([sum(each) / len(each) for each in work.values()])
    if len(means) < 2 or not means.mean():
        return 0.0, math.inf
    draws = np.random.default_rng(0).choice(means, (RESAMPLES, len(means))).mean(axis=1) / means.mean()
    new = math.sqrt(1 + len(chains) / count)  # the new problems differ as well
    low, high = (1 + (float(np.quantile(draws, q)) - 1) * new for q in (0.025, 0.975))
    return max(low, 0.0), high


def tokens(pilot: Pilot, count: int) -> dict[str, tuple[int, int, int]]:
    """By role the prompt tokens of a run, those of them that are cached, and those sampled."""
    return {role: (round(a * count), round(b * count), round(c * count)) for role, (a, b, c) in mean_tokens(pilot.chains).items()}


def _limit(busy: Mapping[str, float], batch_size: int, count: int, *, waited: bool) -> str:
    if waited:
        return CACHE
    role = max(busy, key=lambda each: busy[each])
    if busy[role] < BUSY:
        return "few problems" if count <= 2 * batch_size else "batch size"
    return " and ".join(each for each in busy if busy[role] - busy[each] < 0.03)
