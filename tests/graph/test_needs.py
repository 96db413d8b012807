"""What stages need of their engines, against what these cannot do: each need of each bundled graph, and what is said of it."""

from collections.abc import Collection

import pytest

from pipeline.errors import GraphError
from pipeline.graph.plan import Plan
from pipeline.graph.rules import check_needs, unmet_needs
from pipeline.run.prepare import load_plan
from tests.support.paths import ROOT, SIM

EVERYTHING = ("continues", "options", "probabilities", "logprobs", "seeds", "top_p", "top_k", "min_p")


def plan(graph: str, *settings: str) -> Plan:
    return load_plan(ROOT / f"graphs/{graph}.yaml", SIM, settings)


def lacking(found: Plan, cannot: Collection[str] = EVERYTHING) -> dict[str, set[str]]:
    """The needs of each role that an engine without all of `cannot` does not meet."""
    needs: dict[str, set[str]] = {role: set() for role in found.engines}
    for role, need in unmet_needs(found, dict.fromkeys(found.engines, cannot)):
        needs[role].add(need)
    return needs


STEPS, THOUGHTS = {"continues", "seeds"}, {"seeds"}


@pytest.mark.parametrize(
    ("graph", "settings", "needs"),
    [
        ("speccot", (), {"draft": STEPS, "target": STEPS | {"options"}}),
        ("speccot", ("speculate=never",), {"target": THOUGHTS}),
        ("speccot", ("top_k=20",), {"draft": STEPS | {"top_k"}, "target": STEPS | {"options", "top_k"}}),
        ("specreason", (), {"draft": STEPS, "target": STEPS | {"options"}}),
        ("scot", ("top_p=1.0", "min_probability=0.5"), {"draft": THOUGHTS, "target": THOUGHTS | {"options", "probabilities"}}),
        ("gated", (), {"draft": STEPS | {"logprobs"}, "target": STEPS | {"options"}}),
        ("self-consistency", (), {"draft": THOUGHTS, "target": THOUGHTS}),
        ("target-steps", ("answer_confident=0.95",), {"target": STEPS | {"logprobs"}}),
    ],
    ids=lambda each: each if isinstance(each, str) else "-".join(each) if isinstance(each, tuple) else "",
)
def test_a_graph_needs(graph: str, settings: tuple[str, ...], needs: dict[str, set[str]]) -> None:
    found = plan(graph, *settings)
    without = {role: {need for need in each if need != "top_p"} for role, each in lacking(found).items()}
    assert {role: without[role] for role in needs} == needs
    assert lacking(found, ()) == {role: set() for role in found.engines}


@pytest.mark.parametrize(
    ("need", "said"),
    [
        ("options", "returns no log probabilities, which stage `verify` needs for its verdict; use a server that"),
        ("continues", "cannot continue a partial reply, which stage `guidance` needs; use a server with"),
        ("top_k", "does not support `top_k`, which stage `guidance` sets to 20; leave that out or use another engine"),
    ],
)
def test_what_is_said_names_engine_stage_and_remedy(need: str, said: str) -> None:
    with pytest.raises(GraphError) as caught:
        check_needs(plan("speccot", "top_k=20"), {"target": (need,)})
    assert str(caught.value).startswith(f"engine 'target': {said}")
    assert "\n" not in str(caught.value)


def test_a_gate_needs_the_log_probabilities_of_the_draft_before_it() -> None:
    said = "returns no log probabilities of what it writes, which stage `calm` needs; use an engine that returns them"
    with pytest.raises(GraphError, match=f"^engine 'draft': {said}"):
        check_needs(plan("triggered"), {"draft": ("logprobs",)})


def test_what_a_run_can_do_without_is_no_error() -> None:
    found = plan("speccot")
    check_needs(found, {"target": ("seeds",)})
    assert list(unmet_needs(found, {"target": ("seeds",)})) == [("target", "seeds")]
