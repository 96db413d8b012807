"""A run as what was carried out: its own params and engines, and no run of another graph."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.drawing.run_plan import plan_of_run
from pipeline.errors import InputError
from pipeline.graph.plan import Plan
from tests.support.runs import solve

Load = Callable[..., Plan]


def stage(plan: Plan, name: str) -> Any:
    return next(each.spec for each in plan.stages() if each.name == name)


def test_a_run_is_drawn_with_its_own_params_and_engines(plan: Load, tmp_path: Path) -> None:
    folder = solve(tmp_path, limit=1, settings=("candidates=2", "max_steps=9")).folder
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
    folder = solve(tmp_path, graph="specreason", limit=1).folder
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
