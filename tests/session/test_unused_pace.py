"""Settings that change nothing, as nothing asks what they are about: said before the run."""

import pytest

from pipeline.session.notices import notices
from pipeline.session.prepare import load_plan
from tests.support.paths import ROOT

ENGINES = ROOT / "graphs/engines/sim-2xh100.yaml"


@pytest.mark.parametrize(
    ("graph", "settings", "stage", "param"),
    [
        ("specreason", ("every=4",), "reason", "every"),
        ("specreason", ("every=64", "speculate=never"), "response", "every"),
        ("target", ("every_tokens=32",), "response", "every_tokens"),
    ],
)
def test_a_pace_without_an_early_end_is_said_to_have_no_effect(graph: str, settings: tuple[str, ...], stage: str, param: str) -> None:
    plan = load_plan(ROOT / f"graphs/{graph}.yaml", ENGINES, settings)
    [said] = [each for each in notices(plan) if "effect" in each]
    assert said.startswith(f"warning: stage {stage}: `{param}` has no effect")
    assert not any(node.name == "trial" for node in plan.stages())


@pytest.mark.parametrize(
    ("graph", "settings", "said"),
    [
        ("target", ("every_tokens=8192", "answer_confident=0.9"), "every 8,192 tokens, the answer is not asked for in the 8,192"),
        ("target", ("every_tokens=8191", "answer_confident=0.9"), None),
        ("target", ("every_tokens=4096", "answer_stable=2"), "every 4,096 tokens, the answer is not asked for 2 times in the 8,192"),
        ("target", ("every_tokens=4095", "answer_stable=2"), None),
        ("specreason", ("every=128", "answer_stable=2"), "every 128 steps, the answer is not asked for 2 times in the 256"),
        ("specreason", ("every=127", "answer_stable=2"), None),
        ("specreason", ("every=32", "answer_confident=0.9", "speculate=never"), "every 8,192 tokens, the answer is not asked for in the"),
    ],
)
def test_a_pace_at_which_no_thought_ends_early_is_said_to_have_no_effect(graph: str, settings: tuple[str, ...], said: str | None) -> None:
    found = [each for each in notices(load_plan(ROOT / f"graphs/{graph}.yaml", ENGINES, settings)) if "effect" in each]
    assert [str(said) in each for each in found] == [True] * (said is not None)


@pytest.mark.parametrize("settings", [(), ("every=4", "answer_stable=2"), ("every=4", "answer_confident=0.9", "speculate=never")])
def test_nothing_is_said_where_the_answer_is_asked_for(settings: tuple[str, ...]) -> None:
    plan = load_plan(ROOT / "graphs/specreason.yaml", ENGINES, settings)
    assert not [each for each in notices(plan) if "effect" in each]


@pytest.mark.parametrize(
    ("graph", "settings", "said"),
    [
        ("target", ("prompts=short",), True),
        ("likelihood", ("prompts=short",), True),
        ("speccot", ("prompts=short", "speculate=never"), True),
        ("speccot", ("prompts=short",), False),
        ("specreason", ("prompts=short",), False),
        ("scot", ("prompts=short",), False),
        ("target", ("prompts=specreason",), False),
        ("target", (), False),
    ],
)
def test_a_short_question_that_nobody_asks_is_said_to_have_no_effect(graph: str, settings: tuple[str, ...], said: bool) -> None:
    found = [each for each in notices(load_plan(ROOT / f"graphs/{graph}.yaml", ENGINES, settings)) if "effect" in each]
    warning = f"warning: `prompts=short` has no effect: they change only how `choose` and `score` stages ask, and {graph} has none"
    assert [each.startswith(warning) for each in found] == [True] * said
