"""How often each path through a graph was taken: the tables of a run folder enter, streamed; counts and seconds by stage leave."""

from collections import Counter
from pathlib import Path

import numpy as np
from msgspec import Struct

from pipeline.graph.plan import Plan
from pipeline.store.read import read_batches


class StageCounts(Struct):
    """Sums over the calls of one stage, with every attempt counted."""

    calls: int = 0
    failed: int = 0
    in_flight_s: float = 0.0
    waiting_s: float = 0.0


class RunCounts(Struct, frozen=True, kw_only=True):
    """Counts of a run, for the drawing of its plan."""

    run: str
    """Its id."""
    chains: int
    """Chains that ended and had a call."""
    stages: dict[str, StageCounts]
    accepted: dict[str, int]
    """Accepted steps, by the stage that judged."""
    rejected: dict[str, int]
    """Verdicts after which another stage wrote the step, by the stage that judged."""
    steps: dict[str, int]
    """Committed steps, by the stage that committed them; a stage that judges commits what it accepts."""
    first_steps: dict[str, int]
    """Those of `steps` that were written without drafts as one of the chain's first, by stage."""
    stop_reasons: dict[str, int]
    """Chains by what ended them, most frequent first."""


def count_run(folder: Path, plan: Plan, run: str) -> RunCounts:
    """Count the calls, steps and chains of the run of `plan` in `folder`; `run` is its id. Raises `InputError`."""
    accepted, rejected, committed, first = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for (stage, decision, judge), count in _steps(folder).items():
        committed[stage] += count
        if decision == "accepted":
            accepted[stage] += count
        elif decision == "first_steps":
            first[stage] += count
        elif judge is not None:
            rejected[judge] += count
    reasons = _stop_reasons(folder)
    return RunCounts(
        run=run,
        chains=reasons.total(),
        stages=_stages(folder),
        accepted=accepted,
        rejected=rejected,
        steps=committed,
        first_steps=first,
        stop_reasons=dict(reasons.most_common()),
    )


def _steps(folder: Path) -> Counter[tuple[str, str, str | None]]:
    """Committed steps by the stage that wrote them, their decision, and the stage that judged what was drafted for them."""
    steps: Counter[tuple[str, str, str | None]] = Counter()
    for batch in read_batches(folder, "steps", ["stage", "decision", "verify_stage"]):
        steps.update(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    return steps


def _stop_reasons(folder: Path) -> Counter[str]:
    reasons: Counter[str] = Counter()
    for batch in read_batches(folder, "chains", ["stop_reason", "calls"]):
        columns = (batch.column(name).to_pylist() for name in ("stop_reason", "calls"))
        reasons.update(reason for reason, calls in zip(*columns, strict=True) if calls)
    return reasons


def _stages(folder: Path) -> dict[str, StageCounts]:
    found: dict[str, StageCounts] = {}
    for batch in read_batches(folder, "calls", ["stage", "error_type", "e2e_latency_s", "client_wait_s"]):
        coded = batch.column("stage").dictionary_encode()
        names, codes = coded.dictionary.to_pylist(), coded.indices.to_numpy()
        failed = np.asarray(batch.column("error_type").is_valid())
        columns = (failed, batch.column("e2e_latency_s").to_numpy(), batch.column("client_wait_s").to_numpy())
        sums = [np.bincount(codes, column, len(names)).tolist() for column in (np.ones(len(codes)), *columns)]
        for name, calls, failures, in_flight_s, waiting_s in zip(names, *sums, strict=True):
            stage = found.setdefault(name, StageCounts())
            stage.calls, stage.failed = stage.calls + int(calls), stage.failed + int(failures)
            stage.in_flight_s, stage.waiting_s = stage.in_flight_s + in_flight_s, stage.waiting_s + waiting_s
    return found
