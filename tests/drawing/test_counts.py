"""A run, counted by stage: against the tables as pandas sees them, and by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.drawing.captions import mean_time
from pipeline.drawing.counts import count_run
from pipeline.graph.plan import Plan
from pipeline.store.events import CallRow, ChainRow, StepRow
from pipeline.store.run_store import RunStore


def test_calls_and_seconds_are_those_of_the_table(plan: Callable[..., Plan], run_folder: Path) -> None:
    found = count_run(run_folder, plan("speccot"), "r")
    calls = pd.read_parquet(run_folder / "calls")
    assert set(found.stages) == set(calls.stage)
    for stage, rows in calls.groupby("stage"):
        counted = found.stages[str(stage)]
        assert (counted.calls, counted.failed) == (len(rows), 0)
        assert counted.in_flight_s == pytest.approx(rows.e2e_latency_s.sum())
        assert counted.waiting_s == pytest.approx(rows.client_wait_s.sum())


def test_verdicts_are_those_of_the_table(plan: Callable[..., Plan], run_folder: Path) -> None:
    found, steps = count_run(run_folder, plan("speccot"), "r"), pd.read_parquet(run_folder / "steps")
    judged = steps[steps.verify_kind.notna()]
    assert set(judged.verify_stage) == {"verify"}
    assert steps[steps.verify_kind.isna()].verify_stage.isna().all()
    accepted = int((judged.decision == "accepted").sum())
    assert (found.accepted, found.rejected) == ({"verify": accepted}, {"verify": len(judged) - accepted})
    assert len(judged) > accepted > 0


def test_verdicts_first_steps_failures_and_ends_are_counted(plan: Callable[..., Plan], tmp_path: Path, blank: Callable[..., Any]) -> None:
    store = RunStore(tmp_path)
    failed = {"stage": "draft", "error_type": "CallTimeout", "e2e_latency_s": 3.0}
    store.append("calls", [blank(CallRow, **failed), blank(CallRow, stage="draft", e2e_latency_s=1.0, client_wait_s=0.5)])
    steps = [
        ("fallback", "first_steps", None),
        ("verify", "accepted", "score"),
        ("fallback", "fallback", "score"),
        ("fallback", "fallback", None),
    ]
    judged = [{"verify_kind": kind, "verify_stage": kind and "verify"} for _, _, kind in steps]
    rows = [blank(StepRow, stage=stage, decision=decision, **by) for (stage, decision, _), by in zip(steps, judged, strict=True)]
    store.append("steps", rows)
    ends = [("max_steps", 4), ("error", 2), ("max_steps", 9), ("error", 0)]
    store.append("chains", [blank(ChainRow, stop_reason=reason, calls=calls) for reason, calls in ends])
    store.close()
    found = count_run(tmp_path, plan("specreason"), "r")
    assert (found.accepted, found.rejected, found.first_steps) == ({"verify": 1}, {"verify": 1}, {"fallback": 1})
    assert found.steps == {"fallback": 3, "verify": 1}
    assert (found.chains, found.stop_reasons) == (3, {"max_steps": 2, "error": 1})
    draft = found.stages["draft"]
    assert (draft.calls, draft.failed, draft.in_flight_s, draft.waiting_s) == (2, 1, 4.0, 0.5)


def judged_twice(folder: Path, blank: Callable[..., Any]) -> None:
    """Steps of a graph with two judges of one kind, `early` and `verify`."""
    judges = ["early", "verify", "verify", None]
    rows = [blank(StepRow, stage="fallback", decision="fallback", verify_kind=name and "score", verify_stage=name) for name in judges]
    store = RunStore(folder)
    store.append("steps", rows)
    store.close()


def test_judges_of_one_kind_are_told_apart(plan: Callable[..., Plan], tmp_path: Path, blank: Callable[..., Any]) -> None:
    judged_twice(tmp_path, blank)
    assert count_run(tmp_path, plan("specreason"), "r").rejected == {"early": 1, "verify": 2}


def test_a_run_that_was_cut_short_has_nothing_to_count(plan: Callable[..., Plan], tmp_path: Path) -> None:
    found = count_run(tmp_path, plan("speccot"), "r")
    assert (found.chains, found.stages, found.steps) == (0, {}, {})


@pytest.mark.parametrize(
    ("total", "count", "said"), [(3.0, 2, "1.5 s"), (0.044, 1, "44 ms"), (6e-5, 2, "30 µs"), (0.0, 5, "0 s"), (0.0, 0, "-")]
)
def test_mean_times_have_the_unit_that_fits(total: float, count: int, said: str) -> None:
    assert mean_time(total, count) == said
