"""What the chains of a system are held to, and what makes a comparison of two of them unfair."""

from pathlib import Path

import pytest

from pipeline.analysis.compare.rules import Rules, differences, rules_of
from pipeline.graph.files import bundled_files
from pipeline.run.prepare import load_plan

BASELINES = ["target", "draft", "target-steps", "guided-draft", "speccot", "specreason", "scot"]


def rules(graph: str, *settings: str) -> Rules:
    return rules_of(load_plan(bundled_files("graph")[graph], settings=settings))


def unlike(ours: Rules, theirs: Rules) -> list[str]:
    return [clause for _, clause in differences(ours, theirs)]


@pytest.mark.parametrize("graph", BASELINES)
def test_every_bundled_system_has_the_target_s_budgets(graph: str) -> None:
    found = rules(graph)
    assert (found.thought_tokens, found.answer_tokens, found.closes) == (8192, 1024, True)
    assert not [
        clause for clause in unlike(found, rules("target")) if "exits" not in clause and "end at" not in clause and "sampling" not in clause
    ]


@pytest.mark.parametrize("graph", ["speccot", "specreason", "target-steps"])
def test_the_step_wise_target_can_have_the_exits_of_any_system(graph: str) -> None:
    exits = ("answer_boxed=true", "repeated=2")
    assert unlike(rules("target-steps", *exits), rules(graph, *exits)) == []
    bound = "its thoughts also end at max_steps 256, the baseline's at nothing else"
    assert unlike(rules("target-steps", "answer_boxed=false", "repeated=0"), rules("target")) == [bound]


def test_exits_are_those_of_each_paper() -> None:
    assert rules("speccot").exits == ("max_steps 256",)
    assert rules("specreason").exits == ("answer_boxed", "repeated 2", "max_steps 256")
    assert unlike(rules("specreason"), rules("target")) == [
        "its thoughts also end at answer_boxed, repeated 2, max_steps 256, the baseline's at nothing else"
    ]


def test_how_often_the_answer_is_asked_for_is_an_exit_of_steps_or_tokens() -> None:
    ours, theirs = (rules(graph, "answer_stable=3") for graph in ("target-steps", "target"))
    assert (ours.exits[-1], theirs.exits) == ("max_steps 256", ("answer_stable 3 every 64 tokens",))
    assert "answer_stable 3 every step" in ours.exits
    assert unlike(rules("target", "answer_stable=3", "every_tokens=9"), theirs) == [
        "its thoughts also end at answer_stable 3 every 9 tokens, the baseline's at answer_stable 3 every 64 tokens"
    ]


def test_a_preset_makes_systems_alike() -> None:
    for preset in ("specreason", "speccot"):
        one, other = (rules(graph, f"preset={preset}", "answer_boxed=false", "repeated=0") for graph in ("specreason", "target-steps"))
        assert unlike(one, other) == []


@pytest.mark.parametrize(("preset", "graph"), [("speccot", "speccot"), ("specreason", "specreason"), ("scot", "target-steps")])
def test_no_preset_bounds_the_number_of_steps(preset: str, graph: str) -> None:
    assert not any(each.startswith("max_steps") for each in rules(graph, f"preset={preset}").exits)
    if preset == "speccot":
        assert unlike(rules(graph, f"preset={preset}"), rules("target", f"preset={preset}")) == []


@pytest.mark.parametrize(
    ("setting", "clause"),
    [
        ("token_budget=100", "its thoughts have at most 100 tokens, the baseline's at most 8,192 tokens"),
        ("answer_tokens=10", "its answers have at most 10 tokens, the baseline's at most 1,024 tokens"),
        ("budget=response", "it does not close and answer a thought that exceeds its budget, the baseline does"),
        ("temperature=0.1", "its sampling to write has temperature 0.1, the baseline's temperature 0.6"),
        ("stages.answer.top_k=5", "its sampling to answer has temperature 0.6, top_k 5, the baseline's temperature 0.6"),
        ("prompts=scot", "`prompts.problem` differs from the baseline's"),
    ],
)
def test_what_differs_is_said(setting: str, clause: str) -> None:
    assert clause in unlike(rules("target", setting), rules("target"))
    assert unlike(rules("target"), rules("target")) == []


SIM = Path("sim-2xh100")


@pytest.mark.parametrize(
    ("setting", "kind", "clause"),
    [
        ("candidates=2", "candidates", "candidates is 2, the baseline's 5"),
        ("max_steps=9", "exits", "its thoughts also end at max_steps 9, the baseline's at max_steps 256"),
        ("engines.*.text.preset=math", "text", "the simulated text of its target has preset math, the baseline's "),
        ("engines.target.max_model_len=4096", "lengths", "its target reads and writes at most 4,096 tokens, the baseline's 32,768"),
        ("engines.target.model=Qwen/Other", "models", "its target is Other, the baseline's QwQ-32B"),
        ("engines.*.device.name=x", "devices", "its target computes on x, the baseline's on h100-0+1"),
        ("engines.target.speculative={acceptance: 0.5}", "token_level", "the token-level speculation of its target is "),
    ],
)
def test_what_differs_in_the_engines_is_said(setting: str, kind: str, clause: str) -> None:
    ours, theirs = (rules_of(load_plan(Path("speccot"), SIM, settings)) for settings in ((setting,), ()))
    assert [each for each in differences(ours, theirs) if each.kind == kind and each.clause.startswith(clause)]
    assert list(differences(theirs, theirs)) == []
