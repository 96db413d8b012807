"""What a run cost, and what is left of it: its `run.json` and counts of its tables enter, sums leave. Pure."""

from collections.abc import Mapping

from pipeline.analysis.headline.figures import Left
from pipeline.store.run_file import RunFile


def costs(run: RunFile, tokens: Mapping[str, tuple[int, int, int]], wall_s: float | None) -> dict[str, float]:
    """The cost of each role that has a price; `tokens` are by role those of prompts, of these the cached ones, and those sampled.
    Hours count from the start of the engines, of simulated ones from the first chain."""
    sets = max([float(run.options.get("replicas", 1)), *(each.sets for each in run.sessions[-1:])])
    prices = {role: spec.price for role, spec in run.plan.engines.items()}
    seconds = sets * ((wall_s or 0.0) + (0.0 if run.virtual_time else run.startup_s))
    for each in run.sessions[:-1]:  # they may have had more sets of engines, or fewer
        seconds += (each.sets - sets) * ((each.wall_time_s or 0.0) + (0.0 if run.virtual_time else each.startup_s))
    return {role: price.cost(*tokens.get(role, (0, 0, 0)), seconds) for role, price in prices.items() if price is not None}


def left(run: RunFile, over: int, begun: int, tokens: int, wall_s: float | None, spent: Mapping[str, float]) -> Left | None:
    """What is left of a run of which `over` chains are over and `begun` more have begun, which sampled that many `tokens` together: as much
    for each chain as so far, where one that has begun counts as half. None where nothing is left, or the run is not known."""
    planned = run.chains
    chains = planned - over
    if not run.plan.engines or chains <= 0 or run.status in ("running", "starting"):
        return None
    if not over or not tokens:
        return Left(chains=chains, begun=begun)
    share = planned / (over + begun / 2) - 1
    cost = sum(spent.values()) * share if spent else None
    return Left(chains=chains, begun=begun, tokens=round(tokens * share), time_s=None if wall_s is None else wall_s * share, cost=cost)
