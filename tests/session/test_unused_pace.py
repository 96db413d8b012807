"""How often an answer is asked for before the end, where nothing asks for it: said before the run, and nothing else changes."""

import pytest

from pipeline.session.notices import notices
from pipeline.session.prepare import load_plan
from tests.support.paths import ROOT

ENGINES = ROOT / "graphs/engines/sim-2xh100.yaml"


@pytest.mark.parametrize(
    ("graph", "settings", "stage", "param"),
    [
        ("specreason", ("every=4",), "reason", "every"),
        ("specreason", ("every=4", "speculate=auto"), "reason", "every"),
        ("specreason", ("every=64", "speculate=never"), "response", "every"),
        ("target", ("every_tokens=32",), "response", "every_tokens"),
    ],
)
def test_a_pace_without_an_early_end_is_said_to_have_no_effect(graph: str, settings: tuple[str, ...], stage: str, param: str) -> None:
    plan = load_plan(ROOT / f"graphs/{graph}.yaml", ENGINES, settings)
    [said] = [each for each in notices(plan) if "effect" in each]
    assert said.startswith(f"warning: stage {stage}: `{param}` has no effect")
    assert not any(node.name == "trial" for node in plan.stages())


@pytest.mark.parametrize("settings", [(), ("every=4", "answer_stable=2"), ("every=4", "answer_confident=0.9", "speculate=never")])
def test_nothing_is_said_where_the_answer_is_asked_for(settings: tuple[str, ...]) -> None:
    plan = load_plan(ROOT / "graphs/specreason.yaml", ENGINES, settings)
    assert not [each for each in notices(plan) if "effect" in each]
