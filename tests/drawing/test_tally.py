"""A run, counted by stage: against the tables as pandas sees them, and by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.drawing.tally import tally
from pipeline.drawing.words import mean
from pipeline.graph.plan import Plan
from pipeline.trace.events import CallRow, ChainRow, StepRow
from pipeline.trace.store import TraceStore


def test_calls_and_seconds_are_those_of_the_table(plan: Callable[..., Plan], run_folder: Path) -> None:
    found = tally(run_folder, plan("speccot"), "r")
    calls = pd.read_parquet(run_folder / "calls")
    assert set(found.stages) == set(calls.stage)
    for stage, rows in calls.groupby("stage"):
        counted = found.stages[str(stage)]
        assert (counted.calls, counted.failed) == (len(rows), 0)
        assert counted.in_flight_s == pytest.approx(rows.e2e_latency_s.sum())
        assert counted.waiting_s == pytest.approx(rows.client_wait_s.sum())


def test_verdicts_first_steps_failures_and_ends_are_counted(plan: Callable[..., Plan], tmp_path: Path, blank: Callable[..., Any]) -> None:
    store = TraceStore(tmp_path)
    failed = {"stage": "draft", "error_type": "CallTimeout", "e2e_latency_s": 3.0}
    store.append("calls", [blank(CallRow, **failed), blank(CallRow, stage="draft", e2e_latency_s=1.0, client_wait_s=0.5)])
    steps = [
        ("fallback", "first_steps", None),
        ("verify", "accepted", "score"),
        ("fallback", "fallback", "score"),
        ("fallback", "fallback", None),
    ]
    store.append("steps", [blank(StepRow, stage=stage, decision=decision, verify_kind=kind) for stage, decision, kind in steps])
    ends = [("max_steps", 4), ("error", 2), ("max_steps", 9), ("error", 0)]
    store.append("chains", [blank(ChainRow, stop_reason=reason, calls=calls) for reason, calls in ends])
    store.close()
    found = tally(tmp_path, plan("specreason"), "r")
    assert (found.accepted, found.rejected, found.first_steps) == ({"verify": 1}, {"verify": 1}, {"fallback": 1})
    assert found.steps == {"fallback": 3, "verify": 1}
    assert (found.chains, found.stop_reasons) == (3, {"max_steps": 2, "error": 1})
    draft = found.stages["draft"]
    assert (draft.calls, draft.failed, draft.in_flight_s, draft.waiting_s) == (2, 1, 4.0, 0.5)


def test_a_run_that_was_cut_short_has_nothing_to_count(plan: Callable[..., Plan], tmp_path: Path) -> None:
    found = tally(tmp_path, plan("speccot"), "r")
    assert (found.chains, found.stages, found.steps) == (0, {}, {})


@pytest.mark.parametrize(
    ("total", "count", "said"), [(3.0, 2, "1.5 s"), (0.044, 1, "44 ms"), (6e-5, 2, "30 µs"), (0.0, 5, "0 s"), (0.0, 0, "-")]
)
def test_mean_times_have_the_unit_that_fits(total: float, count: int, said: str) -> None:
    assert mean(total, count) == said
