"""Plans to draw: those of the checked-in graphs, one full of text that means something elsewhere."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.graph.plan import Plan
from pipeline.run.prepare import load_plan
from tests.support.paths import ROOT

Draw = Callable[..., Plan]
NASTY = '"];a-->b;<img src=x onerror=y>&lt;\\N}}{{#quot;`$$'


GRAPH = """
name: nasty
prompts: {{problem: {problem}}}
engines:
  draft: {{backend: torch, model: {model}}}
  target: {{backend: torch, model: bundled:tiny-target}}
  third: {{backend: torch, model: bundled:tiny-target}}
stages:
  guide: {{kind: generate, engine: third, unit: tokens, max_tokens: 8}}
  one: {{kind: draft, engine: draft, unit: step, candidates: 2, max_tokens: 9, after: guide}}
  two: {{kind: draft, engine: target, unit: step, candidates: 2, max_tokens: 9, after: guide}}
  verify: {{kind: choose, engine: target, after: [one, two]}}
  polish: {{kind: generate, engine: target, unit: step, max_tokens: 9, after: verify, when: verify.accepted}}
  fallback: {{kind: generate, engine: target, unit: step, max_tokens: 9, after: verify, when: verify.rejected}}
  answer: {{kind: answer, engine: target, after: [polish, fallback]}}
"""


@pytest.fixture(scope="session")
def plan() -> Draw:
    """`plan(NAME, settings)`: the plan of a checked-in graph."""

    def load(name: str, *settings: str) -> Plan:
        return load_plan(ROOT / f"graphs/{name}.yaml", settings=settings)

    return load


@pytest.fixture
def nasty(tmp_path: Path) -> Plan:
    """Two drafts at the same time, then one of two stages; texts that no format takes as they are."""
    quoted = "'" + NASTY + "'"
    path = tmp_path / "nasty.yaml"
    path.write_text(GRAPH.format(problem="'{{problem}}" + NASTY + "'", model=quoted))
    return load_plan(path)
