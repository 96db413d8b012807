"""What limits a run, and what to try: a summary enters, one hint leaves, or none. Pure.

Each rule looks at one cause; they are asked in the order of `RULES`, and the first that finds its cause speaks. What only the run's own
figures show is said: no rule guesses.
"""

from collections.abc import Callable

from pipeline.analysis.headline.figures import Summary

BUSY = 0.9
"""From this share of the time on an engine counts as busy all the time."""
ALIKE = 0.03
"""Engines whose busy shares are no further apart are equally busy."""


def percent(share: float, digits: int = 0) -> str:
    """A share as `99.8 %`: with as many digits, from `digits` on, as it takes for only all to be 100 % and only nothing 0 %; `> 99.99 %`
    or `< 0.01 %` where four do not suffice."""
    exact = 100 * share
    for enough in range(digits, 5):
        if exact in (0, 100) or 0 < round(exact, enough) < 100:
            return f"{exact:.{enough}f} %"
    return "> 99.99 %" if exact > 50 else "< 0.01 %"


def limit(found: Summary) -> str | None:
    """What limits the run and what to try; None where its figures do not show it."""
    return next((said for rule in RULES if (said := rule(found)) is not None), None)


def _nothing_accepted(s: Summary) -> str | None:
    if not s.verified_steps or s.accepted_steps or s.unverified_steps:
        return None
    what = f"nothing drafted was accepted, 100 % of {s.verified_steps:,} verdicts were rejections"
    if s.option_mass and not s.option_mass.mean:
        return f"{what}, as no option had any probability"
    return f"{what}; was the verifier trained to choose, and does it fit the drafts?"


def _slower_than_the_target(s: Summary) -> str | None:
    found = s.baseline
    if found is None or s.has_toy_models or found.speed_up.high is None or found.times_as_fast is None:
        return None
    if found.speed_up.high >= 1 or found.times_as_fast >= 1:
        return None
    return "speculation: the target alone is faster here; use it, or a draft that costs less for each accepted token"


def _take_turns(s: Summary) -> str | None:
    if len(s.take_turns) < 2 or not s.span_s:
        return None
    remedy = "`sharing: mps` in the engines file" if s.answers else "`nvidia-cuda-mps-control -d` before the run"
    where = "one device" if s.answers else "one GPU"
    return f"{where}: {' and '.join(s.take_turns)} take turns on it; CUDA MPS would let them compute side by side ({remedy})"


def _cache_full(s: Summary) -> str | None:
    if not s.pauses:
        return None
    return f"KV cache: it was full, chains paused {s.pauses:,} times; give the engines more memory for it, or lower --batch-size"


def _few_in_flight(s: Summary) -> str | None:
    shares = {role: engine.busy_share for role, engine in s.engines.items()}
    if not shares or s.replicas > 1 or not 0 < max(shares.values()) < BUSY or s.status != "finished":
        return None
    role = max(shares, key=lambda each: shares[each])
    idle = f"no engine was busy all the time, the {role} {percent(shares[role])} of it"
    if s.schedule not in (None, "pipelined"):
        return f"schedule {s.schedule}: {idle}; try --schedule pipelined"
    if s.batch_size is not None and s.batch_size < s.chains:
        return f"batch size: {idle}; try more than {s.batch_size} chains in flight (--batch-size)"
    return f"few problems: {idle}, with all {s.chains:,} chains in flight at once"


def _bottleneck(s: Summary) -> str | None:
    busy = {role: engine.busy_share for role, engine in s.engines.items()}
    if not busy or max(busy.values()) < BUSY or len(busy) < 2 or s.replicas > 1:
        return None
    first, second, *_ = sorted(busy, key=lambda role: -busy[role])
    if busy[first] - busy[second] <= ALIKE:
        return f"{first} and {second}: both are busy all the time; more or faster devices for both"
    remedy = "fewer candidates, a smaller draft, or more devices for it" if first in s.drafters else "more or faster devices for it"
    return f"{first}: it is busy {percent(busy[first])} of the time, {second} {percent(busy[second])}; {remedy}"


RULES: tuple[Callable[[Summary], str | None], ...] = (
    _nothing_accepted,
    _slower_than_the_target,
    _take_turns,
    _cache_full,
    _few_in_flight,
    _bottleneck,
)
"""The causes, by precedence: what makes the run pointless, then what is misconfigured, then what the hardware limits."""
