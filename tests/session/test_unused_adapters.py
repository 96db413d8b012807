"""Adapters that a run has and does not use, and drafts that are all rejected: both are said."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from pipeline.analysis.headline.adapters import rejections, unused_adapters, used_adapters
from pipeline.session.notices import notices
from pipeline.session.prepare import load_plan
from pipeline.store.run_file import RunFile
from tests.support.paths import ROOT
from tests.support.runs import solve_short

ENGINES = ROOT / "graphs/engines/tiny-scot.yaml"
UNUSED = "engine 'target' has an adapter, `selection`, that no stage uses; to use it: `--set adapter=selection`"

USED = "stage verify uses the adapter `selection` of engine 'target'"


@pytest.mark.parametrize(
    ("graph", "settings", "said"),
    [
        ("scot", (), [USED]),
        ("scot", ("adapter=null",), [UNUSED]),
        ("speccot", (), [UNUSED]),
        ("speccot", ("adapter=selection",), [USED]),
        (
            "target",
            (),
            [UNUSED.replace("`--set adapter=selection`", "`adapter: selection` on a stage of the graph")],
        ),
    ],
)
def test_an_adapter_that_no_stage_names_is_said_before_the_run(graph: str, settings: tuple[str, ...], said: list[str]) -> None:
    plan = load_plan(ROOT / f"graphs/{graph}.yaml", ENGINES, settings)
    assert [*used_adapters(plan), *unused_adapters(plan)] == said
    assert [each for each in notices(plan) if "adapter" in each] == said


@pytest.mark.parametrize(
    ("decisions", "said"),
    [
        ({"fallback": 7}, "all candidates were rejected, 100 % of 7 verdicts at stage verify; "),
        ({"fallback": 7, "accepted": 1}, None),
        ({"written": 3}, None),
        ({}, None),
    ],
)
def test_that_every_candidate_was_rejected_is_said_after_the_run(tmp_path: Path, decisions: dict[str, int], said: Any) -> None:
    run: RunFile = solve_short(tmp_path, "run", limit=1, settings=("max_steps=1",)).run
    found = rejections(structs.replace(run, totals=structs.replace(run.totals, decisions=decisions)))
    assert (found or "").startswith(said or "none") or (found is said is None)
