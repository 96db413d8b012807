"""Loops without speculation: which graphs have them, what the target writes there, and what is refused."""

import msgspec
import pytest

from pipeline.graph.files import parse
from pipeline.graph.load import load_graph, plan_of, source_of
from pipeline.graph.plan import Plan
from pipeline.run.prepare import load_plan
from tests.support.graphs import NAMES
from tests.support.paths import ROOT, SIM

LOOPS = ("speccot", "specreason", "gated")
FIXED = ("routed", "triggered")
"""Those that always speculate: their papers have no other mode."""
STEPS = """
draft: {kind: draft, engine: draft, max_tokens: 100}
verify: {kind: choose, engine: target, after: draft}
fallback: {kind: generate, engine: target, unit: step, max_tokens: 99, temperature: 0.1, after: verify, when: verify.rejected}
"""


def plan(name: str, *settings: str) -> Plan:
    return load_plan(ROOT / f"graphs/{name}.yaml", SIM, settings)


def test_every_bundled_graph_with_a_loop_that_drafts_can_be_without() -> None:
    assert [name for name in NAMES if "speculate" in plan(name).params] == [name for name in NAMES if name in LOOPS]
    assert {name: plan(name).speculate for name in NAMES} == {name: "always" if name in (*LOOPS, *FIXED) else None for name in NAMES}


@pytest.mark.parametrize("name", LOOPS)
def test_never_is_the_plan_of_the_target_alone(name: str) -> None:
    never, target = plan(name, "speculate=never"), plan("target")
    assert (never.block, never.engines, never.speculate) == (target.block, target.engines, "never")


def test_the_target_writes_on_as_its_fallback_does() -> None:
    loop = {"kind": "repeat", "speculate": "never", "until": {"token_budget": 500}, "stages": parse(STEPS)}
    stages = {"reason": loop, "answer": {"kind": "answer", "engine": "target", "after": "reason"}}
    [response, answer] = load_graph({"name": "mine", "stages": stages}, engines=SIM).stages()
    same = {"kind": "generate", "engine": "target", "temperature": 0.1, "top_p": 1.0, "after": (), "when": None, "first_steps": 0}
    same |= {"adapter": None, "top_k": 0, "min_p": 0.0}
    assert msgspec.to_builtins(response.spec) == {**same, "unit": "response", "max_tokens": 500, "answer_tokens": 1024}
    assert (response.rank, answer.rank, answer.spec.after) == (0, 1, "response")


@pytest.mark.parametrize("speculate", ["always", "never"])
def test_a_recorded_plan_is_read_back(speculate: str) -> None:
    found = plan("speccot", f"speculate={speculate}")
    assert plan_of(source_of(found)) == found
