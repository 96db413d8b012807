"""A run to draw: its own params and engines, no run of another graph; its counts by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.drawing.run import count_run, plan_of_run
from pipeline.errors import InputError
from pipeline.graph.plan import Plan
from pipeline.store.events import CallRow, ChainRow, StepRow
from pipeline.store.run_store import RunStore
from tests.support.runs import solve_short

Load = Callable[..., Plan]


def test_verdicts_first_steps_failures_and_ends_are_counted(tmp_path: Path, blank: Callable[..., Any]) -> None:
    store = RunStore(tmp_path)
    failed = {"stage": "draft", "error_type": "CallTimeout", "e2e_latency_s": 3.0}
    store.append("calls", [blank(CallRow, **failed), blank(CallRow, stage="draft", e2e_latency_s=1.0, client_wait_s=0.5), blank(CallRow)])
    steps = [
        ("fallback", "first_steps", None),
        ("verify", "accepted", "verify"),
        ("fallback", "fallback", "verify"),
        ("fallback", "fallback", "early"),
        ("fallback", "fallback", None),
    ]
    store.append("steps", [blank(StepRow, stage=stage, decision=decision, verify_stage=judge) for stage, decision, judge in steps])
    ends = [("max_steps", 1), ("error", 1), ("max_steps", 1), ("error", 0)]
    store.append("chains", [blank(ChainRow, stop_reason=reason, calls=calls) for reason, calls in ends])
    store.close()
    found = count_run(tmp_path, "r")
    assert (found.accepted, found.rejected, found.first_steps) == ({"verify": 1}, {"verify": 1, "early": 1}, {"fallback": 1})
    assert found.steps == {"fallback": 4, "verify": 1}
    assert (found.chains, found.stop_reasons) == (3, {"max_steps": 2, "error": 1})
    draft = found.stages["draft"]
    assert (draft.calls, draft.failed, draft.in_flight_s, draft.waiting_s) == (2, 1, 4.0, 0.5)


def test_a_run_that_was_cut_short_has_nothing_to_count(tmp_path: Path) -> None:
    found = count_run(tmp_path, "r")
    assert (found.chains, found.stages, found.steps) == (0, {}, {})


def stage(plan: Plan, name: str) -> Any:
    return next(each.spec for each in plan.stages() if each.name == name)


def test_a_run_is_drawn_with_its_own_params_and_engines(plan: Load, tmp_path: Path) -> None:
    folder = solve_short(tmp_path, limit=1, settings=("candidates=2", "max_steps=9")).folder
    found = plan_of_run(plan("speccot"), folder)
    assert stage(found.plan, "draft").candidates == 2
    assert stage(plan("speccot"), "draft").candidates == 5
    assert found.plan.params["max_steps"] == 9
    assert found.engines == {"target": "sim QwQ-32B", "draft": "sim DeepSeek-R1-Distill-Qwen-1.5B"}
    assert found.differences[:2] == ("candidates 2", "max_steps 9")
    assert set(found.differences[2:]) == {"target sim QwQ-32B", "draft sim DeepSeek-R1-Distill-Qwen-1.5B"}


@pytest.mark.parametrize(
    ("graph", "said"),
    [
        ("specreason", "it has a stage `guidance`"),
        ("scot", "it has no stage `draft`"),
        ("draft", "it has no stage `response`"),
    ],
)
def test_a_run_of_another_graph_is_refused(plan: Load, run_folder: Path, graph: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        plan_of_run(plan(graph), run_folder)
    assert str(caught.value) == f"{run_folder}: is a run of {_graph_file(run_folder)}, which differs from `{graph}`: {said}"


def _graph_file(folder: Path) -> str:
    return str(json.loads((folder / "run.json").read_text())["graph_file"])


def test_stages_of_the_same_names_are_not_the_same_stages(plan: Load, tmp_path: Path) -> None:
    folder = solve_short(tmp_path, graph="specreason", limit=1).folder
    with pytest.raises(InputError, match=r"its stage `reason.verify` is a `score` by `target`, not a `likelihood` by `target`"):
        plan_of_run(plan("likelihood"), folder)


@pytest.mark.parametrize(
    "damage",
    [{"graph": {}}, {"graph": {"levels": [[{"name": "x"}]]}}, {"graph": {"levels": 3}}, {"graph": []}],
)
def test_a_damaged_run_json_is_refused(plan: Load, run_folder: Path, tmp_path: Path, damage: dict[str, Any]) -> None:
    (tmp_path / "run.json").write_text(json.dumps(json.loads((run_folder / "run.json").read_text()) | damage))
    with pytest.raises(InputError, match=r"run\.json"):
        plan_of_run(plan("speccot"), tmp_path)


def test_a_spec_that_this_version_does_not_know_is_refused(plan: Load, run_folder: Path, tmp_path: Path) -> None:
    card = json.loads((run_folder / "run.json").read_text())
    card["graph"]["levels"][0][0]["spec"]["surprise"] = 1
    (tmp_path / "run.json").write_text(json.dumps(card))
    with pytest.raises(InputError, match="surprise"):
        plan_of_run(plan("speccot"), tmp_path)
