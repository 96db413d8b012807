"""A plan beside what happened: a plan and a run folder enter, predicted and recorded figures leave."""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from pipeline.errors import UsageError
from pipeline.planning.plan import Configuration, PlanFile
from pipeline.store.query import Query
from pipeline.store.run_file import RunFile

MOST = 4
"""Configurations that an error names."""
SAMPLED = "SELECT engine, sum(output_tokens)::BIGINT FROM calls GROUP BY engine ORDER BY engine"


class Checked(Struct, frozen=True, kw_only=True):
    """One figure of a plan."""

    name: str
    predicted: float
    low: float | None = None
    high: float | None = None
    """95 % interval of the problems; null where none is given."""
    outcome: float

    @property
    def error(self) -> float | None:
        """Predicted over recorded, less 1; None where nothing was recorded."""
        return self.predicted / self.outcome - 1 if self.outcome else None


def check(plan: PlanFile, run: Path) -> tuple[Configuration, list[Checked]]:
    """The configuration of a finished run, and its figures; raises `UsageError` where the plan has none of it."""
    file = RunFile.read(run)
    if file.status != "finished" or not file.wall_time_s:
        raise UsageError(f"--check {run}: the run is {file.status}; only a finished one can be compared with a plan")
    found = next(_like(plan, file), None)
    if found is None:
        what = f"{file.plan.name} at batch size {file.batch_size} with its params"
        known = [each.label for each in plan.configurations if each.estimate is not None]
        raise UsageError(f"--check {run}: the plan has no prediction of {what}; it has {'; '.join(known[:MOST])}")
    assert found.estimate is not None
    ratio, expected = file.totals.chains_done / plan.chains, found.estimate
    seconds = expected.fixed_s + expected.chain_s * file.totals.chains_done
    bounds = {"low": seconds * expected.low_s / expected.seconds, "high": seconds * expected.high_s / expected.seconds}
    figures = [Checked(name="seconds", predicted=seconds, outcome=file.wall_time_s, **bounds)]
    with Query(run) as db:
        sampled = dict(db.stream(SAMPLED))
    figures += [
        Checked(name=f"tokens sampled by {role}", predicted=counts[2] * ratio, outcome=float(sampled.get(role, 0)))
        for role, counts in found.tokens.items()
    ]
    return found, figures


def _like(plan: PlanFile, run: RunFile) -> Iterator[Configuration]:
    """The simulated configurations of the graph, params, batch size, sharing and split of the memory of a run."""
    sharings = {getattr(getattr(spec, "device", None), "sharing", "") for spec in run.plan.engines.values()}
    caches = {role: getattr(spec, "kv_cache_tokens", 0) for role, spec in run.plan.engines.items()}
    for each in plan.configurations:
        same = each.system.split()[0] == run.plan.name and each.params == run.plan.params and each.batch_size == run.batch_size
        split = all(caches.get(role, size) in (size, 0) for role, size in each.caches.items())
        if same and split and each.estimate is not None and (not each.sharing or each.sharing in sharings):
            yield each
